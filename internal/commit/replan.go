package commit

import (
	"time"

	"github.com/jackc/pgx/v5"
)

// planAge is kept with every connection. Postgres keeps the plan of a prepared statement, also one made
// when a table was next to empty, when every index that begins with the tenant looks as good as any.
// ANALYZE would end it, but is a minute away at best, or never comes. So plans are thrown away when as
// many batches again have run, after a minute, and when a batch was slow: one made on some hundred
// rows is right for ever.
type planAge struct {
	made    time.Time
	batches int // since then
	limit   int // batches that plans last
	slow    bool
}

const (
	planAgeName = "ledgerd.plans"
	planLimit   = 16
	planLife    = time.Minute
	planPause   = time.Second // between two throws because of slow batches

	// What a batch may take, and each of its commands, before it is slow. A look-up with the wrong plan
	// takes milliseconds a row.
	slowBatch   = 50 * time.Millisecond
	slowCommand = 200 * time.Microsecond
)

func planAgeOf(conn *pgx.Conn) *planAge {
	data := conn.PgConn().CustomData()
	a, ok := data[planAgeName].(*planAge)
	if !ok {
		a = &planAge{made: time.Now(), limit: planLimit}
		data[planAgeName] = a
	}
	return a
}

// note takes down how long a batch took.
func (a *planAge) note(took time.Duration, commands int) {
	a.slow = a.slow || took > slowBatch+time.Duration(commands)*slowCommand
}

// due counts a batch in, and tells whether the plans are to be thrown away before it.
func (a *planAge) due(now time.Time) bool {
	age := now.Sub(a.made)
	many := a.batches >= a.limit
	if !many && age < planLife && !(a.slow && age >= planPause) {
		a.batches++
		return false
	}
	if many {
		a.limit *= 2
	}
	a.made, a.batches, a.slow = now, 1, false
	return true
}
