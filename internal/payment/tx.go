package payment

import (
	"cmp"
	"slices"
	"time"

	"github.com/ledgerd/ledgerd/internal/commit"
	"github.com/ledgerd/ledgerd/internal/payment/internal/db"
)

// Tx holds the payments of one batch's transaction, with all that belongs to them.
type Tx struct {
	sets
	Known        *Gateways
	Payments     commit.Rows[Key, Payment]
	Refunds      commit.Rows[RefundKey, Refund]
	Transactions commit.Rows[TransactionKey, Transaction]
	Notices      commit.Rows[NoticeKey, Recorded]
	Consoles     commit.Rows[ConsoleKey, ConsoleRefund]
	Flags        commit.Rows[FlagKey, Flag]
	Gateways     commit.Rows[GatewayKey, Gateway]
	puts         map[GatewayKey]bool // gateways to change: locked

	ofOrder  map[OrderKey][]OrderPayment
	moneyOf  map[Key][]TransactionKey
	unknown  map[Key][]Stored
	messages []messagesOf
	writer   map[GatewayKey]commit.Caller // of a changed gateway
	calls    []dueCall
	closes   []OrderKey
	born     map[Key]int // by payment that the batch creates: the length of closes at that time
	marks    struct{ calls, closes int }
}

type sets = commit.Sets

// Rows of a batch, and handles of commands.
type (
	Row            = commit.Row[Key, Payment]
	RefundRow      = commit.Row[RefundKey, Refund]
	TransactionRow = commit.Row[TransactionKey, Transaction]
	NoticeRow      = commit.Row[NoticeKey, Recorded]
	ConsoleRow     = commit.Row[ConsoleKey, ConsoleRefund]
	FlagRow        = commit.Row[FlagKey, Flag]
	GatewayRow     = commit.Row[GatewayKey, Gateway]
)

// messagesOf is a request for the messages of a payment.
type messagesOf struct {
	key   Key
	found func(messages []byte)
}

// OrderKey identifies an order.
type OrderKey struct {
	Tenant  int32
	OrderNo string
}

// OrderPayment is a payment of an order: the newest one with its gateway and pay type, or one with a transaction id.
type OrderPayment struct {
	OutTradeNo, Gateway, PayType string
	Paid                         bool // its transaction is recorded, even if the money is in suspense
	Attempt                      int16
}

// Stored is a notice that came before its payment.
type Stored struct {
	NoticeID int64
	Gateway  string
	Received
}

// dueCall asks for a call, or, without a kind, ends the existing one.
type dueCall struct {
	tenant  int32
	subject Subject
	number  string
	gateway string
	kind    CallKind
	only    CallKind // the kind of call to end; empty: any
	at      time.Time
	nonce   int64 // of a lease; 0: none
	until   time.Time
}

// sameSubject reports whether two calls are about the same payment or refund.
func (c dueCall) sameSubject(d dueCall) bool {
	return c.tenant == d.tenant && c.subject == d.subject && c.number == d.number
}

var (
	q                db.Queries
	paymentTable     = commit.NewKeyOrder[Key, Payment](comparePayments)
	refundTable      = commit.NewKeyOrder[RefundKey, Refund](compareRefunds)
	transactionTable = commit.NewKeyOrder[TransactionKey, Transaction](compareTransactions)
	noticeTable      = commit.NewKeyOrder[NoticeKey, Recorded](compareNotices)
	flagTable        = commit.NewKeyOrder[FlagKey, Flag](compareFlags)
	gatewayTable     = commit.NewKeyOrder[GatewayKey, Gateway](compareGateways)
	consoleTable     = commit.NewKeyOrder[ConsoleKey, ConsoleRefund](compareConsoles)
)

var _ commit.Participant = (*Tx)(nil)

// NewTx returns an empty transaction, which uses and corrects a memory of gateways.
func NewTx(known *Gateways) *Tx {
	tx := &Tx{
		Known:        known,
		Payments:     paymentTable.Rows(),
		Refunds:      refundTable.Rows(),
		Transactions: transactionTable.Rows(),
		Notices:      noticeTable.Rows(),
		Flags:        flagTable.Rows(),
		Gateways:     gatewayTable.Rows(),
		Consoles:     consoleTable.Rows(),
		puts:         map[GatewayKey]bool{},
		ofOrder:      map[OrderKey][]OrderPayment{},
		moneyOf:      map[Key][]TransactionKey{},
		unknown:      map[Key][]Stored{},
		writer:       map[GatewayKey]commit.Caller{},
		born:         map[Key]int{},
	}
	tx.sets = commit.SetsOf(&tx.Payments, &tx.Refunds, &tx.Transactions, &tx.Notices, &tx.Consoles, &tx.Flags,
		&tx.Gateways)
	return tx
}

// NameConstraints returns the unique constraints on names that callers and gateways choose.
func NameConstraints() []string {
	return []string{"payment_payments_pkey", "payment_refunds_pkey", "payment_transactions_pkey",
		"payment_notice_names_pkey", "payment_gateways_pkey"}
}

func comparePayments(a, b Key) int {
	return cmp.Or(cmp.Compare(a.Tenant, b.Tenant), cmp.Compare(a.OutTradeNo, b.OutTradeNo))
}

func compareRefunds(a, b RefundKey) int {
	return cmp.Or(cmp.Compare(a.Tenant, b.Tenant), cmp.Compare(a.RefundNo, b.RefundNo))
}

func compareTransactions(a, b TransactionKey) int {
	return cmp.Or(cmp.Compare(a.Tenant, b.Tenant), cmp.Compare(a.Gateway, b.Gateway), cmp.Compare(a.ID, b.ID))
}

func compareNotices(a, b NoticeKey) int {
	return cmp.Or(cmp.Compare(a.Tenant, b.Tenant), cmp.Compare(a.Gateway, b.Gateway), cmp.Compare(a.ID, b.ID))
}

func compareFlags(a, b FlagKey) int {
	return cmp.Or(cmp.Compare(a.Tenant, b.Tenant), cmp.Compare(a.ID, b.ID))
}

func compareGateways(a, b GatewayKey) int {
	return cmp.Or(cmp.Compare(a.Tenant, b.Tenant), cmp.Compare(a.Gateway, b.Gateway))
}

// Want names a payment.
func (tx *Tx) Want(k Key) *Row { return tx.Payments.Want(k) }

// Wanted returns a payment that is named, or nil.
func (tx *Tx) Wanted(k Key) *Row { return tx.Payments.Wanted(k) }

// WantMoney names a payment's transactions too.
func (tx *Tx) WantMoney(k Key) {
	if tx.ID == nil {
		tx.moneyOf[k] = nil
	}
}

// HasMoney reports whether the money of a payment is named.
func (tx *Tx) HasMoney(k Key) bool { _, ok := tx.moneyOf[k]; return ok }

// Money returns the transactions of a payment whose money is named, the oldest first.
func (tx *Tx) Money(k Key) (rows []*TransactionRow) {
	for _, t := range tx.moneyOf[k] {
		rows = append(rows, tx.Transactions.Wanted(t))
	}
	for _, r := range tx.Transactions.Fresh() { // of earlier commands of the batch
		if r.Key.Tenant == k.Tenant && r.Value.OutTradeNo == k.OutTradeNo {
			rows = append(rows, r)
		}
	}
	return rows
}

// WantUnknown names the notices that came before a payment.
func (tx *Tx) WantUnknown(k Key) { tx.unknown[k] = nil }

// Unknown returns the notices that came before a payment, the oldest first.
func (tx *Tx) Unknown(k Key) []Stored { return tx.unknown[k] }

// WantOfOrder names the payments of an order. The command must name the instance of the order too.
func (tx *Tx) WantOfOrder(k OrderKey) {
	if tx.ID == nil {
		tx.ofOrder[k] = nil
	}
}

// HasOfOrder reports whether the payments of an order are named.
func (tx *Tx) HasOfOrder(k OrderKey) bool { _, ok := tx.ofOrder[k]; return ok }

// OfOrder returns the payments of a named order: the newest one for each gateway and pay type, and older ones with a
// transaction id.
func (tx *Tx) OfOrder(k OrderKey) []OrderPayment {
	all := slices.Clone(tx.ofOrder[k])
	for _, r := range tx.Payments.Fresh() { // of earlier commands of the batch
		x := &r.Value
		if r.Key.Tenant != k.Tenant || x.OrderNo != k.OrderNo {
			continue
		}
		i := slices.IndexFunc(all, func(p OrderPayment) bool {
			return p.Gateway == x.Gateway && p.PayType == x.PayType
		})
		if i < 0 {
			i, all = len(all), append(all, OrderPayment{})
		}
		if x.Attempt > all[i].Attempt {
			all[i] = OrderPayment{OutTradeNo: x.OutTradeNo, Gateway: x.Gateway, PayType: x.PayType, Attempt: x.Attempt}
		}
	}
	for i := range all {
		r := tx.Payments.Wanted(Key{k.Tenant, all[i].OutTradeNo})
		all[i].Paid = all[i].Paid || tx.received(r)
	}
	return all
}

// received reports whether the batch has received money of a payment. The row may be nil.
func (tx *Tx) received(r *Row) bool {
	if r == nil || r.Value.TransactionID == "" {
		return false
	}
	t := tx.Transactions.Wanted(TransactionKey{r.Key.Tenant, r.Value.Gateway, r.Value.TransactionID})
	return t != nil && t.Exists
}

// WantMessages names the messages that a payment sends when it succeeds. If it has some, found is called with them
// before any row is locked.
func (tx *Tx) WantMessages(k Key, found func(messages []byte)) {
	tx.messages = append(tx.messages, messagesOf{k, found})
}

// WantPut names a gateway to change.
func (tx *Tx) WantPut(k GatewayKey) *GatewayRow {
	tx.puts[k] = true
	return tx.Gateways.Want(k)
}

// Latch owns all named rows except gateways that are only read: owning these would serialize a gateway's payments.
func (tx *Tx) Latch(l *commit.LatchKeys) {
	tx.Payments.Latch(l)
	tx.Refunds.Latch(l)
	tx.Transactions.Latch(l)
	tx.Notices.Latch(l)
	tx.Consoles.Latch(l)
	tx.Flags.Latch(l)
	for k := range tx.puts {
		l.Own(gatewayTable.Hash(k))
	}
}

// CanOverlap is true unless the batch changes gateways. All other rows are protected by locks, by locked instances, or
// by unique names.
func (tx *Tx) CanOverlap() bool { return len(tx.puts) == 0 }

// Mark sets the point to which Undo reverts.
func (tx *Tx) Mark() {
	tx.sets.Mark()
	tx.marks.calls, tx.marks.closes = len(tx.calls), len(tx.closes)
}

// Undo reverts all changes since Mark.
func (tx *Tx) Undo() {
	tx.sets.Undo()
	tx.calls, tx.closes = tx.calls[:tx.marks.calls], tx.closes[:tx.marks.closes]
}
