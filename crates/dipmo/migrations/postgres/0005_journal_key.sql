-- The journal is only ever asked for the lines of a process: one index instead of two.
alter table dipmo.journal drop constraint journal_pkey;
alter table dipmo.journal add primary key (process_id, id);
drop index dipmo.journal_process;
