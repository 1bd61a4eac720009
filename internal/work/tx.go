package work

import (
	"github.com/ledgerd/ledgerd/internal/commit"
	"github.com/ledgerd/ledgerd/internal/pg"
	"github.com/ledgerd/ledgerd/internal/work/internal/db"
)

// Tx holds the work of one batch's transaction.
type Tx struct {
	rows
	begins int     // number of commands that may need a fence
	fences []int64 // drawn and not yet assigned
}

var (
	q     db.Queries
	table = commit.NewKeyOrder[Key, work](compareKeys)
)

var _ commit.Participant = (*Tx)(nil)

func NewTx() *Tx { return &Tx{rows: table.Rows()} }

// NameConstraints returns the unique constraints on names chosen by callers.
func NameConstraints() []string { return []string{"work_records_pkey"} }

type (
	rows = commit.Rows[Key, work]
	row  = commit.Row[Key, work]
)

// fence returns the next drawn fence, or false if Need reserved too few.
func (tx *Tx) fence() (int64, bool) {
	if len(tx.fences) == 0 {
		return 0, false
	}
	f := tx.fences[0]
	tx.fences = tx.fences[1:]
	return f, true
}

// Lock locks and loads the rows.
func (tx *Tx) Lock(p *commit.Pipe) {
	rows := tx.Sorted()
	if len(rows) == 0 {
		return
	}
	var arg db.WorkLockParams
	for _, r := range rows {
		arg.Tenants = append(arg.Tenants, r.Key.Tenant)
		arg.Scopes = append(arg.Scopes, r.Key.Scope)
		arg.Keys = append(arg.Keys, r.Key.Name)
	}
	p.Queue(func(d commit.DB) error {
		found, err := q.WorkLock(p.Context(), d, arg)
		for i := range found {
			tx.Load(rows[found[i].N-1], workOf(&found[i]))
		}
		return err
	})
}

// Lookup draws fences. Fences must be drawn under the row locks, so that they grow in order of attempts.
func (tx *Tx) Lookup(p *commit.Pipe) {
	if tx.begins == 0 {
		return
	}
	n := int32(tx.begins)
	p.Queue(func(d commit.DB) (err error) {
		fences, err := q.FenceDraw(p.Context(), d, n)
		if err == nil {
			tx.fences = fences
		}
		return err
	})
}

func workOf(r *db.WorkLockRow) work {
	w := work{fingerprint: r.Fingerprint, bound: r.Fingerprint != nil, state: State(r.State), fence: r.Fence,
		attempt: r.Attempt, lease: pg.Milliseconds(r.LeaseMs), parkLapsed: r.ParkLapsed,
		life: pg.Milliseconds(r.LifeMs), principal: r.Principal, requestID: r.RequestID,
		firstRequestID: r.FirstRequestID, createdAt: r.CreatedAt, begunAt: r.BegunAt, answerHash: r.AnswerHash,
		tid: r.Ctid, leaseExpiresAt: pg.OrZero(r.LeaseExpiresAt), settledAt: pg.OrZero(r.SettledAt),
		expiresAt: pg.OrZero(r.ExpiresAt)}
	if r.SettledBy != nil {
		w.settledBy, w.settledRequest = *r.SettledBy, *r.SettledRequestID
	}
	return w
}

func (tx *Tx) Flush(p *commit.Pipe) {
	if rows := tx.Fresh(); len(rows) > 0 {
		arg, _ := params(rows)
		p.Queue(func(d commit.DB) error { return q.WorkInsert(p.Context(), d, arg) })
	}
	if rows := tx.Changed(); len(rows) > 0 {
		arg, tids := params(rows)
		p.Queue(func(d commit.DB) error {
			return q.WorkUpdate(p.Context(), d,
				db.WorkUpdateParams{Tids: tids, Tenants: arg.Tenants, Scopes: arg.Scopes, Keys: arg.Keys,
					Bound: arg.Bound, Fingerprints: arg.Fingerprints, States: arg.States, Fences: arg.Fences,
					Attempts: arg.Attempts, LeaseMs: arg.LeaseMs, LeaseExpiresAt: arg.LeaseExpiresAt,
					ParkLapsed: arg.ParkLapsed, LifeMs: arg.LifeMs, Principals: arg.Principals,
					RequestIds: arg.RequestIds, FirstRequestIds: arg.FirstRequestIds, CreatedAt: arg.CreatedAt,
					BegunAt: arg.BegunAt, SettledAt: arg.SettledAt, SettledBy: arg.SettledBy,
					SettledRequestIds: arg.SettledRequestIds, Answered: arg.Answered, Statuses: arg.Statuses,
					Headers: arg.Headers, Bodies: arg.Bodies, BodyCompressed: arg.BodyCompressed,
					BodyBytes: arg.BodyBytes, AnswerHashes: arg.AnswerHashes, ExpiresAt: arg.ExpiresAt})
		})
	}
}
