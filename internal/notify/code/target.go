package code

import (
	"time"

	"github.com/ledgerd/ledgerd/internal/commit"
	"github.com/ledgerd/ledgerd/internal/fault"
	"github.com/ledgerd/ledgerd/internal/notify/recipient"
	"github.com/ledgerd/ledgerd/internal/notify/send"
)

// target has the rows of one recipient: the code of one type, and the wrong tries of all types.
type target struct {
	err   error
	to    string // normalized recipient
	row   *commit.Row[key, row]
	wrong *commit.Row[key, row]
}

// everyType is the type of the row that records wrong tries of all types. It is not a valid type for callers.
const everyType = "*"

// asked is a code whose message's state has to be read.
type asked struct {
	tenant   int32
	row      *commit.Row[key, row]
	interval time.Duration // until the next code
}

// want requests the rows of a recipient. Its errors are faults SECRET_NOT_CONFIGURED and FIELD_INVALID.
func (tx *Tx) want(tenant int32, kind string, channel send.Channel, written string, interval time.Duration) target {
	if err := tx.outbox.Master.Check(); err != nil {
		return target{err: err}
	}
	to, err := recipient.Parse(channel, written, tx.outbox.Region)
	if err != nil {
		return target{err: fault.InvalidField("recipient", "%v", err)}
	}
	sum := keyedHash(tx.keysOf(tenant).recipient, string(channel), recipient.Same(channel, to))
	hash := [16]byte(sum[:16])
	t := target{to: to, row: tx.Want(key{tenant, kind, hash}), wrong: tx.Want(key{tenant, everyType, hash})}
	tx.asked = append(tx.asked, asked{tenant, t.row, interval})
	return t
}

// triesSpent reports whether the daily limit of wrong tries is reached.
func (r *row) triesSpent(now time.Time) bool { return len(r.lately(now)) >= MaxWrong }

// checkTries refuses any try after the daily limit of wrong tries, even of the right code, so that guessing is useless.
// Returns fault CODE_TRIES_SPENT.
func (t *target) checkTries(tx *Tx, channel send.Channel) error {
	v := &t.wrong.Value
	if !v.triesSpent(tx.Now) {
		return nil
	}
	tries := v.lately(tx.Now)
	tx.refused = append(tx.refused, tallyOf("tries_spent", channel, t.to))
	return wait(TriesSpent.New("no more than %d wrong codes may be tried in 24 hours", MaxWrong),
		tries[len(tries)-MaxWrong].Add(day).Sub(tx.Now))
}
