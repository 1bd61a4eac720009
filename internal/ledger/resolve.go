package ledger

import (
	"time"

	"github.com/ledgerd/ledgerd/internal/commit"
	"github.com/ledgerd/ledgerd/internal/ledger/internal/db"
	"github.com/ledgerd/ledgerd/internal/pg"
)

// Resolve reads what hangs on what was found: the entries of transfers that were there, the holds of
// the locked accounts whose time has come, metadata.
func (tx *Tx) Resolve(p *commit.Pipe) {
	if tx.resolved {
		return
	}
	tx.resolved = true
	tx.resolveTransfers(p)
	tx.resolveLapses(p)
	tx.resolveDetails(p)
}

func (tx *Tx) resolveTransfers(p *commit.Pipe) {
	var found []*Transfer
	var arg db.EntryLookupParams
	add := func(t *Transfer, most int32) {
		if t != nil && !t.complete {
			t.complete = true
			found = append(found, t)
			arg.Tenants = append(arg.Tenants, t.Tenant)
			arg.TransferIds = append(arg.TransferIds, t.ID)
			arg.Most = append(arg.Most, most)
		}
	}
	for _, r := range tx.transferRefs {
		add(r.t, 0)
	}
	for _, n := range tx.nameList {
		if n.all {
			add(n.t, 0)
		} else {
			add(n.t, n.most)
		}
	}
	if len(found) == 0 {
		return
	}
	p.Queue(func(d commit.DB) error {
		rows, err := q.EntryLookup(p.Context(), d, arg)
		for _, r := range rows {
			t := found[r.N-1]
			t.Entries = append(t.Entries,
				Entry{AccountID: r.AccountID, Account: r.Code, Asset: r.Asset, Scale: uint8(r.Scale),
					Version: r.Version, TransferID: t.ID, Posting: r.Posting, Amount: r.Amount, Before: r.BalanceBefore,
					After: r.BalanceAfter, RecordedAt: r.RecordedAt.UTC(), EffectiveAt: pg.OrZero(r.EffectiveAt)})
		}
		return err
	})
	p.Queue(func(d commit.DB) error {
		rows, err := q.ReversalLookup(p.Context(), d,
			db.ReversalLookupParams{Tenants: arg.Tenants, TransferIds: arg.TransferIds})
		for _, r := range rows {
			found[r.N-1].ReversedByID = r.TransferID
		}
		return err
	})
}

// maxLapses is about how many holds lapse in one batch.
const maxLapses = 2000

// resolveLapses lets the due holds of locked accounts lapse, before any command and whatever becomes
// of the commands: between its time and the scheduler a hold must not take what is available. Of an
// account with very many of them some lapse in this batch, and its commands run after it.
func (tx *Tx) resolveLapses(p *commit.Pipe) {
	due := tx.dueAccounts()
	if len(due) == 0 {
		return
	}
	most := max(1, maxLapses/len(due))
	arg := db.HoldDueParams{Now: tx.at.Now, Most: int64(most) + 1}
	for _, a := range due {
		if a.writer != nil { // and perhaps its holds are not yet written
			p.Refuse(commit.ErrConflict)
			return
		}
		arg.Tenants = append(arg.Tenants, a.Tenant)
		arg.AccountIds = append(arg.AccountIds, a.ID)
	}
	p.Queue(func(d commit.DB) error {
		rows, err := q.HoldDue(p.Context(), d, arg)
		if err != nil {
			return err
		}
		for _, a := range due {
			a.NextLapseAt, a.dirty = time.Time{}, true
		}
		met := make([]int, len(due))
		for _, r := range rows {
			a := due[r.N-1]
			if met[r.N-1]++; met[r.N-1] > most && !r.ExpiresAt.After(tx.at.Now) {
				a.NextLapseAt, a.lapsing = r.ExpiresAt.UTC(), true
				continue
			}
			tx.meet(a, tx.keepHold(&Hold{Tenant: a.Tenant, ID: r.HoldID, AccountID: a.ID, Amount: r.Amount,
				Captured: r.Captured,
				State:    Held, ExpiresAt: r.ExpiresAt.UTC()}))
		}
		return nil
	})
}

// dueAccounts are those of which a hold may have to lapse.
func (tx *Tx) dueAccounts() (due []*Account) {
	for _, a := range tx.locks {
		if a.found && !a.NextLapseAt.IsZero() && !a.NextLapseAt.After(tx.at.Now) {
			due = append(due, a)
		}
	}
	return due
}

// meet gives back what an open hold keeps, if its time has come, or else expects it.
func (tx *Tx) meet(a *Account, h *Hold) {
	if h.ExpiresAt.After(tx.at.Now) {
		tx.expectLapse(a, h)
		return
	}
	tx.touch(a)
	tx.touchHold(h)
	a.Held, _ = a.Held.Sub(h.Remaining())
	h.State, h.ClosedAt = Expired, tx.at.Now
}

// expectLapse keeps the account's lower bound of the times at which its holds lapse.
func (tx *Tx) expectLapse(a *Account, h *Hold) {
	if a.NextLapseAt.IsZero() || h.ExpiresAt.Before(a.NextLapseAt) {
		a.NextLapseAt = h.ExpiresAt
	}
}

func (tx *Tx) resolveDetails(p *commit.Pipe) {
	var found []*Account
	var arg db.AccountDetailLookupParams
	for a := range tx.details {
		if a.found {
			found = append(found, a)
			arg.Tenants = append(arg.Tenants, a.Tenant)
			arg.AccountIds = append(arg.AccountIds, a.ID)
		}
	}
	if len(found) == 0 {
		return
	}
	p.Queue(func(d commit.DB) error {
		rows, err := q.AccountDetailLookup(p.Context(), d, arg)
		for _, r := range rows {
			a := found[r.N-1]
			a.Metadata, a.CreatedAt = readMetadata(r.Metadata), r.CreatedAt.UTC()
		}
		return err
	})
}
