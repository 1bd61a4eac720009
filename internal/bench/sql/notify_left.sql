-- Messages that are not settled.
select count(*) from notify_queue where due_at is not null;
