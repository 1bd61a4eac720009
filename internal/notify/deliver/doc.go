// Package deliver sends open messages and records the outcome. Any number of processes share one database. The package
// owns no table: it leases and settles rows of notify_queue, which package notify inserts.
//
//	find     handed over after the commit that inserted the message, or by polling; hints from other
//	         processes only shorten the wait
//	take     a batch with SKIP LOCKED, under a lease and an increasing fence
//	mark     a message that must not be sent twice: state "sending", committed before the provider is asked;
//	         for other messages the provider, if it is not the first
//	send     through the channel's Sender, while the lease covers a whole attempt
//	finish   many results in one statement for sent and one for failed messages; every write checks the fence
//
// Promises: after any crash, each queued message is eventually sent, dead or unknown, with the reason. A message that
// must not be sent twice never is. Any other message is sent again only with the same key to the provider. A flooding
// tenant, a hanging provider or a slow endpoint delays only its own messages.
package deliver
