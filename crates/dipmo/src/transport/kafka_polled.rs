//! A producer together with the thread that hands out its delivery reports.
//!
//! The client library has one of its own, which ends every wait in a spin of up to a millisecond, ten times
//! a second: a hundredth of a core for each idle producer. This one waits longer; reports do not wait.

use std::io;
use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use rdkafka::producer::{BaseProducer, ProducerContext};

/// A dropped producer goes when the wait it is in has ended.
const WAIT: Duration = Duration::from_secs(1);

pub(super) struct Polled<C: ProducerContext + 'static> {
    producer: Arc<BaseProducer<C>>,
    stop: Arc<AtomicBool>,
}

impl<C: ProducerContext + 'static> Polled<C> {
    pub(super) fn new(producer: BaseProducer<C>) -> io::Result<Self> {
        let (producer, stop) = (Arc::new(producer), Arc::new(AtomicBool::new(false)));
        let (polled, stopped) = (Arc::clone(&producer), Arc::clone(&stop));
        let poll = move || {
            while !stopped.load(Ordering::Relaxed) {
                polled.poll(WAIT);
            }
        };
        thread::Builder::new().name("kafka reports".to_owned()).spawn(poll)?;
        Ok(Self { producer, stop })
    }
}

impl<C: ProducerContext + 'static> Deref for Polled<C> {
    type Target = BaseProducer<C>;

    fn deref(&self) -> &Self::Target {
        &self.producer
    }
}

impl<C: ProducerContext + 'static> Drop for Polled<C> {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
    }
}
