package token

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5/pgtype"

	"github.com/ledgerd/ledgerd/internal/commit"
	"github.com/ledgerd/ledgerd/internal/pg"
	"github.com/ledgerd/ledgerd/internal/token/internal/db"
)

// Tx holds the tokens of one batch's transaction.
type Tx struct{ rows }

type rows = commit.Rows[key, row]

type key struct {
	tenant int32
	hash   [sha256.Size]byte
}

func compareKeys(a, b key) int {
	return cmp.Or(cmp.Compare(a.tenant, b.tenant), bytes.Compare(a.hash[:], b.hash[:]))
}

// States of a token. Refused: the submission that spent the token was refused by a business rule.
const (
	open    = "open"
	spent   = "spent"
	refused = "refused"
)

// row is a row of token_submit_tokens.
type row struct {
	binding
	state     string
	issued    commit.Caller
	issuedAt  time.Time
	expiresAt time.Time
	forgetAt  time.Time
	tid       pgtype.TID
	reopened  bool // by a command of the batch

	// Set by the submission that spent the token.
	spentAt   time.Time
	spentBy   string // principal
	requestID string
	operation string
	result    map[string]string
}

// binding has the properties that the next token inherits.
type binding struct {
	subject, purpose string // empty: not bound
	life             time.Duration
	survivesRefusal  bool
}

// of makes the row of a newly issued token.
func (b binding) of(c commit.Caller, now time.Time) row {
	ends := now.Add(b.life)
	return row{binding: b, state: open, issued: c, issuedAt: now, expiresAt: ends, forgetAt: ends.Add(openKept)}
}

var (
	q     db.Queries
	table = commit.NewKeyOrder[key, row](compareKeys)
)

func NewTx() *Tx { return &Tx{table.Rows()} }

// CanOverlap is true because commands see only the tokens that they declare.
func (tx *Tx) CanOverlap() bool { return true }

// Lock locks the tokens to be spent.
func (tx *Tx) Lock(p *commit.Pipe) {
	wanted := tx.Sorted()
	if len(wanted) == 0 {
		return
	}
	var arg db.TokenLockParams
	for _, r := range wanted {
		arg.Tenants = append(arg.Tenants, r.Key.tenant)
		arg.Hashes = append(arg.Hashes, r.Key.hash[:])
	}
	p.Queue(func(d commit.DB) error {
		rows, err := q.TokenLock(p.Context(), d, arg)
		if err != nil {
			return err
		}
		for i := range rows {
			v, err := load(&rows[i])
			if err != nil {
				return err
			}
			tx.Load(wanted[rows[i].N-1], v)
		}
		return nil
	})
}

func load(l *db.TokenLockRow) (row, error) {
	r := row{binding: binding{subject: pg.OrZero(l.Subject), purpose: pg.OrZero(l.Purpose),
		life:            pg.Milliseconds(l.LifeMs),
		survivesRefusal: l.SurvivesRefusal}, state: l.State, issuedAt: l.IssuedAt, expiresAt: l.ExpiresAt,
		forgetAt: l.ForgetAt, tid: l.Ctid,
		spentAt: pg.OrZero(l.SpentAt), requestID: pg.OrZero(l.SpentRequestID), operation: pg.OrZero(l.Operation)}
	if l.Result != nil {
		if err := json.Unmarshal(l.Result, &r.result); err != nil {
			return r, fmt.Errorf("read the result of a submission: %w", err)
		}
	}
	return r, nil
}

// Flush writes issued and spent tokens.
func (tx *Tx) Flush(p *commit.Pipe) {
	if issued := tx.Fresh(); len(issued) > 0 {
		arg := db.TokenInsertParams{Now: tx.Now}
		pg.Reserve(&arg, len(issued))
		for _, r := range issued {
			v := &r.Value
			arg.Tenants = append(arg.Tenants, r.Key.tenant)
			arg.Hashes = append(arg.Hashes, r.Key.hash[:])
			arg.Subjects = append(arg.Subjects, v.subject)
			arg.Purposes = append(arg.Purposes, v.purpose)
			arg.LivesMs = append(arg.LivesMs, v.life.Milliseconds())
			arg.SurviveRefusals = append(arg.SurviveRefusals, v.survivesRefusal)
			arg.Principals = append(arg.Principals, v.issued.Principal)
			arg.RequestIds = append(arg.RequestIds, v.issued.RequestID)
			arg.ExpiresAt = append(arg.ExpiresAt, v.expiresAt)
			arg.ForgetAt = append(arg.ForgetAt, v.forgetAt)
		}
		p.Queue(func(d commit.DB) error { return q.TokenInsert(p.Context(), d, arg) })
	}
	tx.flushReopened(p)
	used := slices.DeleteFunc(tx.Changed(), func(r *Row) bool { return r.Value.reopened })
	if len(used) > 0 {
		arg := db.TokenSpendParams{Now: tx.Now}
		pg.Reserve(&arg, len(used))
		for _, r := range used {
			v := &r.Value
			arg.Hashes = append(arg.Hashes, r.Key.hash[:])
			arg.Tids = append(arg.Tids, v.tid)
			arg.States = append(arg.States, v.state)
			arg.ForgetAt = append(arg.ForgetAt, v.forgetAt)
			arg.SpentBy = append(arg.SpentBy, v.spentBy)
			arg.SpentRequestIds = append(arg.SpentRequestIds, v.requestID)
			arg.Operations = append(arg.Operations, v.operation)
			arg.Results = append(arg.Results, resultText(v.result))
		}
		p.Queue(func(d commit.DB) error { return q.TokenSpend(p.Context(), d, arg) })
	}
}

func (tx *Tx) flushReopened(p *commit.Pipe) {
	var arg db.TokenReopenParams
	for _, r := range tx.Changed() {
		if v := &r.Value; v.reopened {
			arg.Hashes, arg.Tids = append(arg.Hashes, r.Key.hash[:]), append(arg.Tids, v.tid)
			arg.ExpiresAt, arg.ForgetAt = append(arg.ExpiresAt, v.expiresAt), append(arg.ForgetAt, v.forgetAt)
		}
	}
	if len(arg.Tids) > 0 {
		p.Queue(func(d commit.DB) error { return q.TokenReopen(p.Context(), d, arg) })
	}
}

func resultText(m map[string]string) string {
	if len(m) == 0 {
		return ""
	}
	b, err := json.Marshal(m)
	if err != nil {
		panic(err) // a map of strings always encodes
	}
	return string(b)
}
