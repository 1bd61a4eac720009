package payment

import (
	"cmp"
	"time"

	"github.com/ledgerd/ledgerd/internal/amount"
	"github.com/ledgerd/ledgerd/internal/commit"
	"github.com/ledgerd/ledgerd/internal/payment/internal/db"
	"github.com/ledgerd/ledgerd/internal/pg"
)

// ConsoleKey identifies a console refund. Its ID is that of its first notice.
type ConsoleKey struct {
	Tenant int32
	ID     int64
}

// ConsoleRefund is a refund that no call requested, for example one made in the console of the gateway.
type ConsoleRefund struct {
	Gateway         string
	RefundNo        string // empty: not stated
	GatewayRefundID string // empty: not stated
	OutTradeNo      string
	TransactionID   string // empty: not stated, and the payment had none
	Unit
	Amount    amount.Int // by the last notice; 0: not stated
	Failed    bool       // the refund failed, or its money came back
	NoticedAt time.Time  // of that notice, by the gateway's clock; zero: none stated a time
	FlagID    int64      // last flag about it; 0: none
	Reflagged bool       // a command of the batch has changed the outcome or amount
}

// Unit is the unit of an amount.
type Unit struct {
	Currency string // empty: not stated
	Asset    string // empty: none for the currency
	Scale    uint8
}

// GivenBack is the amount given back, by the last notice.
func (r *ConsoleRefund) GivenBack() amount.Int {
	if r.Failed {
		return amount.Int{}
	}
	return r.Amount
}

// Of is the amount given back of a transaction, in its minor units, rounded up. It is 0 if the refund has another
// currency than the transaction.
func (r *ConsoleRefund) Of(t *Transaction) amount.Int {
	if r.Currency != "" && r.Currency != t.Currency {
		return amount.Int{}
	}
	return amount.NewDecimal(r.GivenBack(), r.Scale).MinorUp(t.Scale)
}

func compareConsoles(a, b ConsoleKey) int {
	return cmp.Or(cmp.Compare(a.Tenant, b.Tenant), cmp.Compare(a.ID, b.ID))
}

// AddConsole records a console refund, whose first notice is already recorded.
func (tx *Tx) AddConsole(first *NoticeRow, r ConsoleRefund) {
	tx.Consoles.Add(ConsoleKey{first.Key.Tenant, first.Value.ID}, r)
}

func (tx *Tx) lockConsoles(p *commit.Pipe) {
	rows := tx.Consoles.Sorted()
	if len(rows) == 0 {
		return
	}
	var arg db.ConsoleLockParams
	for _, r := range rows {
		arg.Tenants, arg.ConsoleIds = append(arg.Tenants, r.Key.Tenant), append(arg.ConsoleIds, r.Key.ID)
	}
	p.Queue(func(d commit.DB) error {
		found, err := q.ConsoleLock(p.Context(), d, arg)
		for i := range found {
			f := &found[i]
			tx.Consoles.Load(rows[f.N-1], ConsoleRefund{Gateway: f.Gateway, RefundNo: pg.OrZero(f.RefundNo),
				GatewayRefundID: pg.OrZero(f.GatewayRefundID), OutTradeNo: f.OutTradeNo, TransactionID: f.TransactionID,
				Unit: Unit{f.Currency, pg.OrZero(f.Asset), uint8(f.Scale)}, Amount: f.Amount, Failed: f.Failed,
				NoticedAt: pg.OrZero(f.NoticedAt), FlagID: pg.OrZero(f.FlagID)})
		}
		return err
	})
}

func (tx *Tx) flushConsoles(p *commit.Pipe) {
	if rows := tx.Consoles.Fresh(); len(rows) > 0 {
		arg := db.ConsoleInsertParams{Now: tx.Now}
		for _, r := range rows {
			x := &r.Value
			arg.Tenants, arg.ConsoleIds = append(arg.Tenants, r.Key.Tenant), append(arg.ConsoleIds, r.Key.ID)
			arg.Gateways, arg.RefundNos = append(arg.Gateways, x.Gateway), append(arg.RefundNos, x.RefundNo)
			arg.GatewayRefundIds = append(arg.GatewayRefundIds, x.GatewayRefundID)
			arg.OutTradeNos = append(arg.OutTradeNos, x.OutTradeNo)
			arg.TransactionIds = append(arg.TransactionIds, x.TransactionID)
			arg.Currencies, arg.Assets = append(arg.Currencies, x.Currency), append(arg.Assets, x.Asset)
			arg.Scales, arg.Amounts = append(arg.Scales, int16(x.Scale)), append(arg.Amounts, x.Amount)
			arg.Failed, arg.NoticedAt = append(arg.Failed, x.Failed), append(arg.NoticedAt, x.NoticedAt)
			arg.FlagIds = append(arg.FlagIds, x.FlagID)
		}
		p.Queue(func(d commit.DB) error { return q.ConsoleInsert(p.Context(), d, arg) })
	}
	rows := tx.Consoles.Changed()
	if len(rows) == 0 {
		return
	}
	var arg db.ConsoleUpdateParams
	for _, r := range rows {
		x := &r.Value
		arg.Tenants, arg.ConsoleIds = append(arg.Tenants, r.Key.Tenant), append(arg.ConsoleIds, r.Key.ID)
		arg.Currencies, arg.Assets = append(arg.Currencies, x.Currency), append(arg.Assets, x.Asset)
		arg.Scales, arg.Amounts = append(arg.Scales, int16(x.Scale)), append(arg.Amounts, x.Amount)
		arg.Failed, arg.NoticedAt = append(arg.Failed, x.Failed), append(arg.NoticedAt, x.NoticedAt)
		arg.FlagIds = append(arg.FlagIds, x.FlagID)
	}
	p.Queue(func(d commit.DB) error { return q.ConsoleUpdate(p.Context(), d, arg) })
}
