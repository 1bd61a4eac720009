// Package consumer processes messages from brokers in this process. A message's effects and its inbox row
// commit in one transaction; the message is acknowledged afterwards. If the process dies in between, the
// redelivered message finds that row and has no second effect. Brokers only need to deliver at least once.
//
// Source is the interface to the brokers, implemented by one subpackage each. Consumer has the common part:
// message ids, failures, and acknowledgements.
package consumer
