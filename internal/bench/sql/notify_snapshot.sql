-- Takes the snapshot that is held open.
select count(*) from notify_queue;
