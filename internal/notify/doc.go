// Package notify is the outbox: a message to a person or system is part of the commit that causes it. It owns the
// tables notify_messages, notify_contents, notify_events, notify_queue, notify_names, notify_fingerprints,
// notify_limits and notify_counters. Package deliver polls the queue and sends; the packages beside it implement the
// channels and providers.
//
// Promises: a message is in the queue if and only if its cause committed. A biz_no names one message for ever; equal
// recipient, content and business type make one message within a window. A repeat is answered with the first message.
// No window of a limit's length accepts more messages than the limit, and rolled-back messages do not count. Long-lived
// rows contain neither recipient nor content.
package notify
