package ledger

import (
	"time"

	"github.com/jackc/pgx/v5/pgtype"

	"github.com/ledgerd/ledgerd/internal/amount"
	"github.com/ledgerd/ledgerd/internal/commit"
)

// Stored states of accounts and holds, and kinds of accounts.
const (
	Open, Frozen, Closed                             = "open", "frozen", "closed"
	Held, Captured, Released, Expired                = "held", "captured", "released", "expired"
	KindAsset, KindLiability, KindEquity, KindIncome = "asset", "liability", "equity", "income"
	KindExpense                                      = "expense"
)

// AccountKey identifies an account within the database.
type AccountKey struct {
	Tenant      int32
	Code, Asset string
}

// Account is an account's row. Amounts are in minor units.
type Account struct {
	AccountKey
	ID           int64
	Scale        uint8
	Kind         string
	State        string
	Balance      amount.Int
	Held         amount.Int
	Min          *amount.Int // least balance; nil: unbounded; read-only
	Max          *amount.Int // greatest balance; nil: no limit; read-only
	Version      int64
	LastEntryAt  time.Time // zero: no entries
	NextExpiryAt time.Time // zero: no open holds
	Metadata     map[string]string
	CreatedAt    time.Time

	madeBy  string            // request id of the creating call
	xmin    uint32            // transaction that wrote the row
	tid     pgtype.TID        // location of the row; unknown if taken over from a predecessor that changes it
	writer  *commit.RowWriter // batch that will write the row; nil: loaded
	exists  bool              // in the database or created by this batch
	fresh   bool              // created by this batch
	dirty   bool
	changed bool   // state or limits changed
	overdue bool   // set by resolveDue: more holds are due than one batch expires, so commands return ErrLater
	saved   uint64 // the mark at which it was saved for undo
}

// Format formats an amount of the account's asset as a decimal.
func (a *Account) Format(n amount.Int) string { return amount.Format(n, a.Scale) }

// Asset is a unit of amounts.
type Asset struct {
	Tenant    int32
	Code      string
	Scale     uint8
	CreatedAt time.Time
	exists    bool
	fresh     bool
}

// Entry is one side of a posting. Amounts are in minor units of the asset.
type Entry struct {
	AccountID   int64
	Account     string // account code
	Asset       string
	Scale       uint8
	Version     int64
	TransferID  int64
	Posting     int16
	Amount      amount.Int // positive: credit, negative: debit
	Before      amount.Int
	After       amount.Int
	RecordedAt  time.Time
	EffectiveAt time.Time // zero: the recorded time
}

// Transfer is a transfer with its entries: two per posting, the debit first.
type Transfer struct {
	Tenant       int32
	ID           int64
	BizNo        string
	Type         string
	RecordedAt   time.Time
	EffectiveAt  time.Time // zero: not given
	ReversesID   int64
	ReversedByID int64
	HoldID       int64
	Forms        string // requested amounts, if any was not exact
	Metadata     map[string]string
	Principal    string
	RequestID    string
	Entries      []Entry
	complete     bool // entries and reversal are loaded or being loaded
}

// Hold is an amount of an account that is reserved for a transfer.
type Hold struct {
	Tenant    int32
	ID        int64
	BizNo     string
	AccountID int64
	From      string // account code
	Asset     string
	Scale     uint8
	To        string // code of the default destination, or empty
	Form      string // requested amount, if not exact
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

// Remaining is the amount still held.
func (h *Hold) Remaining() amount.Int {
	if h.State != Held {
		return amount.Int{}
	}
	left, _ := h.Amount.Sub(h.Captured)
	return left
}
