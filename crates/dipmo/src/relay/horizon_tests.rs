//! Readings in, safe id and gaps out: each rule of the horizon by itself.

use super::*;

const MS: Duration = Duration::from_millis(1);

/// A horizon that is polled by hand, in the order that callers must keep.
struct Poller {
    horizon: Horizon,
    now: Instant,
}

impl Poller {
    fn new() -> Self {
        Self { horizon: Horizon::new(HorizonOptions::default(), 0), now: Instant::now() }
    }

    /// One poll: `last` with a mark `xid`, what runs, who holds locks, and what a listing would miss.
    fn poll(&mut self, last: i64, xid: u64, running: &[u64], holders: &[u32], missing: &[(i64, i64)]) -> View {
        self.now += 5 * MS;
        let xid = (last > self.horizon.marked()).then_some(xid);
        self.horizon.mark(last, xid, self.now);
        let xmax = xid.unwrap_or(0).max(running.last().copied().unwrap_or(0)).max(900) + 1;
        let xmin = running.first().copied().unwrap_or(xmax);
        self.horizon.snapshot(Snapshot { xmin, xmax, running: running.to_vec() }, self.now);
        if self.horizon.wants_locks(self.now) {
            let holders: Vec<Holder> = holders.iter().map(|xid| Holder { xid_low: *xid, pid: None }).collect();
            self.horizon.locks(&holders, self.now);
        }
        if let Some((after, upto)) = self.horizon.decide() {
            let mut ranges = Ranges::default();
            missing.iter().filter(|m| m.0 > after && m.0 <= upto).for_each(|m| ranges.push(m.0, m.1));
            self.horizon.listed(ranges, upto);
        }
        self.horizon.view()
    }

    fn pass(&mut self, millis: u32) {
        self.now += MS * millis;
    }
}

#[test]
fn with_nobody_running_the_last_id_is_safe_at_once() {
    let mut poller = Poller::new();
    assert_eq!(poller.poll(10, 100, &[], &[], &[]).safe, 10);
    assert!(!poller.horizon.is_waiting());
}

#[test]
fn an_older_writer_holds_the_mark_until_it_ends() {
    let mut poller = Poller::new();
    assert_eq!(poller.poll(10, 100, &[99], &[99], &[]).safe, 0);
    assert_eq!(poller.poll(12, 101, &[99], &[99], &[]).safe, 0);
    assert_eq!(poller.poll(12, 0, &[], &[], &[]).safe, 12);
}

#[test]
fn a_newer_writer_holds_nothing_that_was_marked_before_it() {
    let mut poller = Poller::new();
    assert_eq!(poller.poll(10, 100, &[100, 105], &[105], &[]).safe, 10);
}

#[test]
fn a_long_writer_elsewhere_is_passed_by_its_locks() {
    let mut poller = Poller::new();
    assert_eq!(poller.poll(10, 100, &[50], &[], &[]).safe, 0, "level 1 waits");
    poller.pass(20);
    let view = poller.poll(10, 0, &[50], &[], &[]);
    assert_eq!((view.safe, poller.horizon.level()), (10, 2));
    assert!(view.gaps.is_empty());
}

#[test]
fn a_short_inserter_beside_a_long_writer_still_holds_the_mark() {
    let mut poller = Poller::new();
    poller.poll(10, 100, &[50, 99], &[99], &[]);
    poller.pass(20);
    // 12 ms later than level 3 would need: the mark itself is young.
    assert_eq!(poller.poll(11, 101, &[50, 100], &[100], &[]).safe, 10);
    assert_eq!(poller.poll(11, 0, &[50], &[], &[]).safe, 11);
}

#[test]
fn an_inserter_left_open_becomes_a_staller_and_its_ids_a_gap() {
    let mut poller = Poller::new();
    poller.poll(10, 100, &[50], &[50], &[]);
    poller.pass(30);
    let view = poller.poll(10, 0, &[50], &[50], &[(4, 6)]);
    assert_eq!((view.safe, poller.horizon.level()), (10, 3));
    assert_eq!((view.gaps[0].ranges.to_text(), &view.gaps[0].stallers), ("{[4,6)}".to_owned(), &vec![50]));
    // While it lives, later marks pass without locks, and its later ids join the gap.
    let view = poller.poll(20, 110, &[50], &[50], &[(15, 16)]);
    assert_eq!((view.safe, view.gaps.len()), (20, 1));
    assert_eq!(view.gaps[0].ranges.to_text(), "{[4,6),[15,16)}");
    // Gone by the snapshot: what it committed is visible now, so the gap is no more.
    let view = poller.poll(20, 0, &[], &[], &[]);
    assert!(view.gaps.is_empty() && poller.horizon.stallers().is_empty());
}

#[test]
fn a_staller_ends_by_the_snapshot_and_not_by_its_lock() {
    let mut poller = Poller::new();
    poller.poll(10, 100, &[50], &[50], &[]);
    poller.pass(30);
    poller.poll(10, 0, &[50], &[50], &[(4, 5)]);
    let view = poller.poll(12, 111, &[50], &[], &[]);
    assert_eq!((view.safe, view.gaps.len()), (12, 1), "it holds no lock and still runs");
}

#[test]
fn healthy_writers_beside_a_staller_are_waited_for() {
    let mut poller = Poller::new();
    poller.poll(10, 100, &[50], &[50], &[]);
    poller.pass(30);
    poller.poll(10, 0, &[50], &[50], &[(4, 5)]);
    let view = poller.poll(20, 120, &[50, 119], &[50, 119], &[(4, 5), (18, 19)]);
    assert_eq!(view.safe, 10, "119 may own an id below 20 and has had no time");
    let view = poller.poll(20, 0, &[50], &[50], &[]);
    assert_eq!((view.safe, view.gaps[0].ranges.to_text()), (20, "{[4,5)}".to_owned()));
}

#[test]
fn marks_older_than_every_staller_need_no_listing() {
    let mut poller = Poller::new();
    poller.poll(10, 100, &[90], &[90], &[]);
    poller.pass(30);
    poller.poll(10, 0, &[90], &[90], &[(4, 5)]);
    let mut horizon = poller.horizon;
    horizon.mark(20, Some(150), poller.now);
    horizon.snapshot(Snapshot { xmin: 160, xmax: 170, running: vec![160] }, poller.now);
    assert_eq!((horizon.decide(), horizon.view().safe), (None, 20));
}

#[test]
fn too_many_ranges_make_it_wait() {
    let mut poller = Poller::new();
    poller.horizon.options.gap_ranges_max = 1;
    poller.poll(10, 100, &[50], &[50], &[]);
    poller.pass(30);
    let view = poller.poll(10, 0, &[50], &[50], &[(4, 5), (7, 8)]);
    assert!(poller.horizon.is_capped() && poller.horizon.is_waiting());
    assert_eq!(view.safe, 0);
    assert_eq!(poller.poll(10, 0, &[], &[], &[]).safe, 10, "the end of the staller frees it");
}

#[test]
fn a_partial_listing_moves_as_far_as_it_goes() {
    let mut horizon = Horizon::new(HorizonOptions::default(), 0);
    let now = Instant::now();
    horizon.mark(100, Some(100), now);
    let snapshot = Snapshot { xmin: 50, xmax: 101, running: vec![50] };
    horizon.snapshot(snapshot.clone(), now);
    horizon.locks(&[Holder { xid_low: 50, pid: Some(7) }], now + 30 * MS);
    assert_eq!(horizon.decide(), Some((0, 100)));
    horizon.listed(Ranges::default(), 40);
    assert_eq!((horizon.view().safe, horizon.is_waiting()), (40, true));
    horizon.snapshot(snapshot, now + 31 * MS);
    assert_eq!(horizon.decide(), Some((40, 100)), "without reading the locks again");
}

#[test]
fn the_daily_jump_of_the_sequence_is_one_range() {
    let mut poller = Poller::new();
    poller.poll(10, 100, &[50], &[50], &[]);
    poller.pass(30);
    let view = poller.poll(10 + (1 << 36), 101, &[50], &[50], &[(8, 1 << 36)]);
    assert_eq!(view.gaps[0].ranges.len(), 1);
}

#[test]
fn a_snapshot_reads_what_the_server_prints() {
    let snapshot = Snapshot::from_text("10:20:10,14,15").expect("it is one");
    assert_eq!(snapshot, Snapshot { xmin: 10, xmax: 20, running: vec![10, 14, 15] });
    assert!(snapshot.is_running(14) && !snapshot.is_running(13) && snapshot.is_running(20));
    assert!(Snapshot::from_text("10:10:").expect("it is one").running.is_empty());
    for text in ["", "1:2", "a:b:c", "1:2:3:4"] {
        assert!(Snapshot::from_text(text).is_err(), "{text:?}");
    }
}

#[test]
fn locks_are_matched_by_the_low_half_of_a_transaction_id() {
    let mut horizon = Horizon::new(HorizonOptions::default(), 0);
    let (now, epoch) = (Instant::now(), 3u64 << 32);
    horizon.mark(10, Some(epoch + 100), now);
    horizon.snapshot(Snapshot { xmin: epoch + 50, xmax: epoch + 101, running: vec![epoch + 50] }, now);
    horizon.locks(&[Holder { xid_low: 50, pid: Some(7) }], now + 30 * MS);
    let first = Staller { pid: Some(7), since: now + 30 * MS };
    assert_eq!(horizon.stallers().get(&(epoch + 50)), Some(&first));
    horizon.locks(&[Holder { xid_low: 50, pid: Some(7) }], now + 60 * MS);
    assert_eq!(horizon.stallers().get(&(epoch + 50)), Some(&first), "it stalls since it was first seen to");
}
