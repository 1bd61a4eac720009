// Package notify is the outbox: messages to people and systems that are part of the commit of their cause. It owns
// the tables notify_messages, notify_contents, notify_events, notify_queue, notify_names, notify_fingerprints,
// notify_limits and notify_counters. Who takes messages out of the queue and sends them is internal/notify/deliver;
// how, are its neighbours.
//
// What it promises: a message is in the queue if and only if its cause committed. The same biz_no makes one message
// for ever, the same recipient, content and business type one within a window; a repeat is answered with the first.
// Never more than a limit allows are accepted in any window of its length, and what is rolled back is not counted.
// What is kept for years says neither to whom a message went nor what it said.
package notify
