package ledger

import (
	"time"

	"github.com/jackc/pgx/v5/pgtype"

	"github.com/ledgerd/ledgerd/internal/amount"
	"github.com/ledgerd/ledgerd/internal/commit"
)

// States of an account and of a hold, and kinds of accounts, as they are stored.
const (
	Open, Frozen, Closed                             = "open", "frozen", "closed"
	Held, Captured, Released, Expired                = "held", "captured", "released", "expired"
	KindAsset, KindLiability, KindEquity, KindIncome = "asset", "liability", "equity", "income"
	KindExpense                                      = "expense"
)

// Caller is on whose behalf a command runs.
type Caller = commit.Caller

// AccountKey names an account within the database.
type AccountKey struct {
	Tenant      int32
	Code, Asset string
}

// Account is one account's row. Amounts are in minor units.
type Account struct {
	AccountKey
	ID          int64
	Scale       uint8
	Kind        string
	State       string
	Balance     amount.Int
	Held        amount.Int
	Min         *amount.Int // least balance; nil: any depth. Never written through
	Max         *amount.Int // greatest balance; nil: no limit. Never written through
	Version     int64
	LastEntryAt time.Time // zero: it has no entry
	NextLapseAt time.Time // zero: no open hold
	Metadata    map[string]string
	CreatedAt   time.Time

	madeBy  string         // request id of the call that made it
	xmin    uint32         // the transaction that wrote the row
	tid     pgtype.TID     // where the row is; of one that was taken over it is not known
	writer  *commit.Writer // the batch that is about to write it; nil: it was loaded
	found   bool           // in the database, or made by this batch
	fresh   bool           // made by this batch
	dirty   bool
	changed bool   // state or limits too
	lapsing bool   // holds are left whose time has come
	saved   uint64 // the mark under which it was saved for undo
}

// Available is what may go out: balance - held - least balance. ok is false when there is no least
// balance, or when the amount passes 38 digits: then there is no bound that matters.
func (a *Account) Available() (available amount.Int, ok bool) {
	if a.Min == nil {
		return amount.Int{}, false
	}
	free, ok := a.Balance.Sub(a.Held)
	if !ok {
		return amount.Int{}, false
	}
	return free.Sub(*a.Min)
}

// Format gives an amount of the account's asset as people write it.
func (a *Account) Format(n amount.Int) string { return amount.Format(n, a.Scale) }

// Asset is what amounts are counted in.
type Asset struct {
	Tenant    int32
	Code      string
	Scale     uint8
	CreatedAt time.Time
	found     bool
	fresh     bool
}

// Entry is one side of a posting.
type Entry struct {
	AccountID   int64
	Account     string // code
	Asset       string
	Scale       uint8
	Version     int64
	TransferID  int64
	Posting     int16
	Amount      amount.Int // credits above zero, debits below
	Before      amount.Int
	After       amount.Int
	RecordedAt  time.Time
	EffectiveAt time.Time // zero: as recorded
}

// Transfer is a transfer with its entries: two a posting, debit first.
type Transfer struct {
	Tenant       int32
	ID           int64
	BizNo        string
	Type         string
	RecordedAt   time.Time
	EffectiveAt  time.Time // zero: the caller did not say
	ReversesID   int64
	ReversedByID int64
	HoldID       int64
	Forms        string // amounts as asked for, when any was not exact
	Metadata     map[string]string
	Principal    string
	RequestID    string
	Entries      []Entry
	complete     bool // entries and reversal are there, or being loaded
}

// Hold is a hold.
type Hold struct {
	Tenant    int32
	ID        int64
	BizNo     string
	AccountID int64
	From      string // code of the account
	Asset     string
	Scale     uint8
	To        string // code of the default destination, or empty
	Form      string // amount as asked for, when it was not exact
	Amount    amount.Int
	Captured  amount.Int
	State     string
	Life      time.Duration
	ExpiresAt time.Time
	CreatedAt time.Time
	ClosedAt  time.Time
	Metadata  map[string]string
	Principal string
	RequestID string

	fresh bool
	dirty bool
	saved uint64
}

// Remaining is what the hold still keeps.
func (h *Hold) Remaining() amount.Int {
	if h.State != Held {
		return amount.Int{}
	}
	left, _ := h.Amount.Sub(h.Captured)
	return left
}
