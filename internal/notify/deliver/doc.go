// Package deliver sends messages that are open, and writes down what became of them. Any number of processes do so on
// one database. It owns no table: what it takes and settles are rows of notify_queue, which internal/notify inserts.
//
//	find     from memory, right after the commit that made the message, or by polls; hints of other
//	         processes only make these earlier
//	take     a batch by SKIP LOCKED, under a lease and a fence that grows
//	mark     one that may not be sent twice: "sending", committed, before the provider is asked; of any other,
//	         which provider is asked, if it is not the first
//	send     through the Sender of its channel, with enough of the lease left for all of the attempt
//	finish   many results in one statement each for those sent and those not; every write names the fence
//
// Its promises: what is in the queue is sent, or parked as unknown or dead with the reason, whatever dies on the way;
// one that may not be sent twice never is; any other is sent again only with the same key for the provider. A tenant
// that floods, a provider that hangs, or an endpoint that is slow, holds up itself alone.
package deliver
