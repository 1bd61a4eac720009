package approval

import (
	"cmp"

	"github.com/jackc/pgx/v5/pgtype"

	"github.com/ledgerd/ledgerd/internal/approval/internal/db"
	"github.com/ledgerd/ledgerd/internal/commit"
	"github.com/ledgerd/ledgerd/internal/pg"
)

// Tx holds the requests of one batch's transaction.
type Tx struct{ requests }

type requests = commit.Rows[Key, row]

// row is a request in a batch.
type row struct {
	Request
	tid     pgtype.TID
	made    *RequestCommand // by this batch
	decider commit.Caller   // in this batch
}

// Row is a command's handle of a request.
type Row = commit.Row[Key, row]

var (
	q     db.Queries
	table = commit.NewKeyOrder[Key, row](compare)
)

var _ commit.Participant = (*Tx)(nil)

// NewTx returns an empty transaction.
func NewTx() *Tx { return &Tx{table.Rows()} }

func compare(a, b Key) int {
	return cmp.Or(cmp.Compare(a.Tenant, b.Tenant), cmp.Compare(a.ID, b.ID))
}

// add records a request under a new id.
func (tx *Tx) add(c *RequestCommand) Request {
	k := Key{c.Tenant, tx.ID()}
	r := Request{Key: k, State: Open, Operation: c.Operation, Reason: c.Reason, Principal: c.Principal,
		RequestID: c.RequestID, CreatedAt: tx.Now, ExpiresAt: tx.Now.Add(c.Life)}
	tx.Add(k, row{Request: r, made: c})
	return r
}

// Check refuses a request that cannot be decided. Returns faults APPROVAL_NOT_FOUND, APPROVAL_REJECTED,
// APPROVAL_APPROVED, APPROVAL_EXPIRED.
func (tx *Tx) Check(r *Row) error {
	if !r.Exists {
		return r.Key.NotFound()
	}
	return r.Value.check(tx.Now)
}

// Decide decides an open request, and returns it.
func (tx *Tx) Decide(r *Row, s State, by commit.Caller, note string, response []byte) Request {
	x := tx.Change(r)
	x.decider, x.State, x.DecidedBy, x.DecidedAt, x.Note, x.Response = by, s, by.Principal, tx.Now, note, response
	return x.Request
}

// Lock locks and loads the named requests.
func (tx *Tx) Lock(p *commit.Pipe) {
	rows := tx.Sorted()
	if len(rows) == 0 {
		return
	}
	var arg db.ApprovalLockParams
	for _, r := range rows {
		arg.Tenants, arg.ApprovalIds = append(arg.Tenants, r.Key.Tenant), append(arg.ApprovalIds, r.Key.ID)
	}
	p.Queue(func(d commit.DB) error {
		found, err := q.ApprovalLock(p.Context(), d, arg)
		for i := range found {
			f := &found[i]
			r := rows[f.N-1]
			tx.Load(r, row{tid: f.Ctid, Request: Request{Key: r.Key, State: State(f.State), Operation: f.Operation,
				Reason: pg.OrZero(f.Reason), Principal: f.Principal, RequestID: f.RequestID,
				CreatedAt: f.CreatedAt, ExpiresAt: f.ExpiresAt, DecidedBy: pg.OrZero(f.DecidedBy),
				DecidedAt: pg.OrZero(f.DecidedAt), Note: pg.OrZero(f.Note), Response: f.Response}})
		}
		return err
	})
}

// Flush inserts the new requests, and updates those that were decided.
func (tx *Tx) Flush(p *commit.Pipe) {
	if fresh := tx.Fresh(); len(fresh) > 0 {
		arg := db.ApprovalInsertParams{Now: tx.Now}
		for _, r := range fresh {
			c := r.Value.made
			arg.Tenants, arg.ApprovalIds = append(arg.Tenants, r.Key.Tenant), append(arg.ApprovalIds, r.Key.ID)
			arg.Operations, arg.Requests = append(arg.Operations, c.Operation), append(arg.Requests, c.Bytes)
			arg.Details, arg.Reasons = append(arg.Details, c.Details), append(arg.Reasons, c.Reason)
			arg.Principals, arg.KeyIds = append(arg.Principals, c.Principal), append(arg.KeyIds, c.KeyID)
			arg.RequestIds = append(arg.RequestIds, c.RequestID)
			arg.ExpiresAt = append(arg.ExpiresAt, r.Value.ExpiresAt)
		}
		p.Queue(func(d commit.DB) error { return q.ApprovalInsert(p.Context(), d, arg) })
	}
	changed := tx.Changed()
	if len(changed) == 0 {
		return
	}
	arg := db.ApprovalUpdateParams{Now: tx.Now}
	for _, r := range changed {
		x := &r.Value
		arg.Tids, arg.States = append(arg.Tids, x.tid), append(arg.States, string(x.State))
		arg.DecidedBy = append(arg.DecidedBy, x.decider.Principal)
		arg.DecidedKeyIds = append(arg.DecidedKeyIds, x.decider.KeyID)
		arg.DecidedRequestIds = append(arg.DecidedRequestIds, x.decider.RequestID)
		arg.Notes, arg.Responses = append(arg.Notes, x.Note), append(arg.Responses, x.Response)
	}
	p.Queue(func(d commit.DB) error { return q.ApprovalUpdate(p.Context(), d, arg) })
}
