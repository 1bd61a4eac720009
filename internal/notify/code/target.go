package code

import (
	"time"

	"github.com/ledgerd/ledgerd/internal/commit"
	"github.com/ledgerd/ledgerd/internal/fault"
	"github.com/ledgerd/ledgerd/internal/notify/recipient"
	"github.com/ledgerd/ledgerd/internal/notify/send"
)

// target is a recipient's code of one type, beside the recipient's wrong tries of all types.
type target struct {
	err   error
	to    string // the recipient in its normal form
	row   *commit.Row[key, row]
	wrong *commit.Row[key, row]
}

// everyType is the type of the row whose times are those of wrong tries, whatever these were for. No caller can name
// it.
const everyType = "*"

// asked is a code of which it has to be known whether its message died.
type asked struct {
	tenant   int32
	row      *commit.Row[key, row]
	interval time.Duration // before the next one
}

// want names the rows of a recipient. Its faults are SECRET_NOT_CONFIGURED, FIELD_INVALID.
func (tx *Tx) want(tenant int32, kind string, channel send.Channel, written string, interval time.Duration) target {
	if err := tx.outbox.Master.Check(); err != nil {
		return target{err: err}
	}
	to, err := recipient.Parse(channel, written, tx.outbox.Region)
	if err != nil {
		return target{err: fault.FieldInvalid.New("the recipient %s", err).WithField("recipient", err.Error())}
	}
	sum := keyed(tx.keysOf(tenant).recipient, string(channel), recipient.Same(channel, to))
	hash := [16]byte(sum[:16])
	t := target{to: to, row: tx.Want(key{tenant, kind, hash}), wrong: tx.Want(key{tenant, everyType, hash})}
	tx.asked = append(tx.asked, asked{tenant, t.row, interval})
	return t
}

// full tells whether there are as many wrong tries as a day may have.
func (r *row) full(now time.Time) bool { return len(r.lately(now)) >= MostWrong }

// spent refuses what has no more wrong tries to spare: also the right code, or guessing would go on. Returns fault
// CODE_TRIES_SPENT.
func (t *target) spent(tx *Tx, channel send.Channel) error {
	v := &t.wrong.Value
	if !v.full(tx.Now) {
		return nil
	}
	tries := v.lately(tx.Now)
	tx.refused = append(tx.refused, tallyOf("tries_spent", channel, t.to))
	return wait(TriesSpent.New("no more than %d wrong codes may be tried in 24 hours", MostWrong),
		tries[len(tries)-MostWrong].Add(day).Sub(tx.Now))
}
