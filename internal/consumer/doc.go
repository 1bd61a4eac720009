// Package consumer brings messages of brokers to effect in this process. What a message asks for and the
// row by which it is known commit in one transaction, and only then is the message acknowledged: so a
// message that is delivered again, because the process died in between, finds that row, and has no
// effect again. However a broker delivers, at least once is all that is asked of it.
//
// Source is the seam to the brokers, one package each below this one. Consumer is what they share: which
// message is which, what to do when one fails, when to acknowledge.
package consumer
