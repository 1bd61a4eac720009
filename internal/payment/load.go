package payment

import (
	"github.com/ledgerd/ledgerd/internal/commit"
	"github.com/ledgerd/ledgerd/internal/gateway"
	"github.com/ledgerd/ledgerd/internal/payment/internal/db"
	"github.com/ledgerd/ledgerd/internal/pg"
)

// Discover finds the messages of payments, which do not change until they are sent.
func (tx *Tx) Discover(p *commit.Pipe) {
	if len(tx.messages) == 0 {
		return
	}
	var arg db.PaymentMessagesParams
	for _, x := range tx.messages {
		arg.Tenants, arg.OutTradeNos = append(arg.Tenants, x.key.Tenant), append(arg.OutTradeNos, x.key.OutTradeNo)
	}
	p.Queue(func(d commit.DB) error {
		rows, err := q.PaymentMessages(p.Context(), d, arg)
		for _, r := range rows {
			tx.messages[r.N-1].found(r.Messages)
		}
		return err
	})
}

// Lock locks the gateways that are changed, and the console refunds.
func (tx *Tx) Lock(p *commit.Pipe) {
	tx.lockGateways(p)
	tx.lockConsoles(p)
}

func (tx *Tx) lockGateways(p *commit.Pipe) {
	rows, arg := tx.gatewayRows(true)
	if len(rows) == 0 {
		return
	}
	p.Queue(func(d commit.DB) error {
		found, err := q.GatewayLock(p.Context(), d, db.GatewayLockParams(arg))
		for _, f := range found {
			tx.Gateways.Load(rows[f.N-1], gatewayOf(f.Clearing, f.Suspense, f.Payee))
		}
		return err
	})
}

func (tx *Tx) gatewayRows(changed bool) (rows []*GatewayRow, arg db.GatewayLookupParams) {
	for _, r := range tx.Gateways.Sorted() {
		if tx.puts[r.Key] == changed {
			rows = append(rows, r)
			arg.Tenants, arg.Gateways = append(arg.Tenants, r.Key.Tenant), append(arg.Gateways, r.Key.Gateway)
		}
	}
	return rows, arg
}

// Lookup reads all other rows. The instances that guard them have been locked before.
func (tx *Tx) Lookup(p *commit.Pipe) {
	tx.lookupGateways(p)
	tx.lookupPayments(p)
	tx.lookupOfOrders(p)
	tx.lookupTransactions(p)
	tx.lookupMoney(p)
	tx.lookupNotices(p)
	tx.lookupUnknown(p)
	tx.lookupRefunds(p)
	tx.lookupFlags(p)
}

func (tx *Tx) lookupGateways(p *commit.Pipe) {
	rows, arg := tx.gatewayRows(false)
	if len(rows) == 0 {
		return
	}
	p.Queue(func(d commit.DB) error {
		found, err := q.GatewayLookup(p.Context(), d, arg)
		for _, f := range found {
			tx.Gateways.Load(rows[f.N-1], gatewayOf(f.Clearing, f.Suspense, f.Payee))
		}
		for _, r := range rows {
			if r.Found {
				tx.Known.Learn(r.Key, r.Value)
			}
		}
		return err
	})
}

func gatewayOf(clearing string, suspense, payee *string) Gateway {
	return Gateway{clearing, pg.OrZero(suspense), pg.OrZero(payee)}
}

func (tx *Tx) lookupPayments(p *commit.Pipe) {
	rows := tx.Payments.Sorted()
	if len(rows) == 0 {
		return
	}
	var arg db.PaymentLookupParams
	for _, r := range rows {
		arg.Tenants, arg.OutTradeNos = append(arg.Tenants, r.Key.Tenant), append(arg.OutTradeNos, r.Key.OutTradeNo)
	}
	p.Queue(func(d commit.DB) error {
		found, err := q.PaymentLookup(p.Context(), d, arg)
		for i := range found {
			f := &found[i]
			r := rows[f.N-1]
			x := Payment{Key: r.Key, ID: f.PaymentID, OrderNo: f.OrderNo, Gateway: f.Gateway, PayType: f.PayType,
				Attempt: f.Attempt, Asset: f.Asset, Scale: uint8(f.Scale), Amount: f.Amount, Payee: f.Payee,
				Details: Details{pg.OrZero(f.Description), pg.OrZero(f.Payer), pg.OrZero(f.PayerIp),
					pg.OrZero(f.ReturnUrl)},
				ExpiresAt: pg.OrZero(f.ExpiresAt), TokenHash: f.TokenHash, Early: f.Early, Principal: f.Principal,
				RequestID: f.RequestID, CreatedAt: f.CreatedAt,
				Progress: Progress{TransactionID: pg.OrZero(f.TransactionID), PaidAt: pg.OrZero(f.PaidAt),
					FailureCode: pg.OrZero(f.FailureCode), FailureText: pg.OrZero(f.FailureText)}}
			if err := pg.FromJSON(f.Credential, &x.Credential); err != nil {
				return err
			}
			tx.Payments.Load(r, x)
		}
		return err
	})
}

func (tx *Tx) lookupOfOrders(p *commit.Pipe) {
	if len(tx.ofOrder) == 0 {
		return
	}
	var arg db.PaymentOfOrderParams
	for k := range tx.ofOrder {
		arg.Tenants, arg.OrderNos = append(arg.Tenants, k.Tenant), append(arg.OrderNos, k.OrderNo)
	}
	p.Queue(func(d commit.DB) error {
		found, err := q.PaymentOfOrder(p.Context(), d, arg)
		for _, f := range found {
			k := OrderKey{arg.Tenants[f.N-1], arg.OrderNos[f.N-1]}
			tx.ofOrder[k] = append(tx.ofOrder[k], OrderPayment{f.OutTradeNo, f.Gateway, f.PayType, f.Paid,
				f.Attempt})
		}
		return err
	})
}

func (tx *Tx) lookupTransactions(p *commit.Pipe) {
	rows := tx.Transactions.Sorted()
	if len(rows) == 0 {
		return
	}
	var arg db.TransactionLookupParams
	for _, r := range rows {
		arg.Tenants, arg.Gateways = append(arg.Tenants, r.Key.Tenant), append(arg.Gateways, r.Key.Gateway)
		arg.TransactionIds = append(arg.TransactionIds, r.Key.ID)
	}
	p.Queue(func(d commit.DB) error {
		found, err := q.TransactionLookup(p.Context(), d, arg)
		for _, f := range found {
			tx.Transactions.Load(rows[f.N-1], Transaction{f.OutTradeNo, f.NoticeID, f.Currency, pg.OrZero(f.Asset),
				uint8(f.Scale), f.Amount, pg.OrZero(f.Account), f.Refunding, f.Refunded, f.ExtraRefunded})
		}
		return err
	})
}

func (tx *Tx) lookupMoney(p *commit.Pipe) {
	if len(tx.moneyOf) == 0 {
		return
	}
	var arg db.TransactionOfPaymentParams
	for k := range tx.moneyOf {
		arg.Tenants, arg.OutTradeNos = append(arg.Tenants, k.Tenant), append(arg.OutTradeNos, k.OutTradeNo)
	}
	p.Queue(func(d commit.DB) error {
		found, err := q.TransactionOfPayment(p.Context(), d, arg)
		for _, f := range found {
			k := Key{arg.Tenants[f.N-1], arg.OutTradeNos[f.N-1]}
			t := TransactionKey{k.Tenant, f.Gateway, f.TransactionID}
			tx.moneyOf[k] = append(tx.moneyOf[k], t)
			tx.Transactions.Load(tx.Transactions.Want(t), Transaction{f.OutTradeNo, f.NoticeID, f.Currency,
				pg.OrZero(f.Asset), uint8(f.Scale), f.Amount, pg.OrZero(f.Account), f.Refunding, f.Refunded,
				f.ExtraRefunded})
		}
		return err
	})
}

func (tx *Tx) lookupNotices(p *commit.Pipe) {
	rows := tx.Notices.Sorted()
	if len(rows) == 0 {
		return
	}
	var arg db.NoticeLookupParams
	for _, r := range rows {
		arg.Tenants, arg.Gateways = append(arg.Tenants, r.Key.Tenant), append(arg.Gateways, r.Key.Gateway)
		arg.NotifyIds = append(arg.NotifyIds, r.Key.ID)
	}
	p.Queue(func(d commit.DB) error {
		found, err := q.NoticeLookup(p.Context(), d, arg)
		for _, f := range found {
			tx.Notices.Load(rows[f.N-1], Recorded{ID: f.NoticeID, Effect: Effect(f.Effect),
				Report: Report{gateway.Kind(f.Kind), f.OutTradeNo, f.TransactionID, f.Amount, f.Currency}})
		}
		return err
	})
}

func (tx *Tx) lookupUnknown(p *commit.Pipe) {
	if len(tx.unknown) == 0 {
		return
	}
	arg := db.NoticeUnknownParams{Most: MaxUnknown}
	for k := range tx.unknown {
		arg.Tenants, arg.OutTradeNos = append(arg.Tenants, k.Tenant), append(arg.OutTradeNos, k.OutTradeNo)
	}
	p.Queue(func(d commit.DB) error {
		found, err := q.NoticeUnknown(p.Context(), d, arg)
		for _, f := range found {
			s := Stored{NoticeID: f.NoticeID, Gateway: f.Gateway}
			if err := pg.FromJSON(f.Fields, &s.Notice); err != nil {
				return err
			}
			s.Asset = pg.OrZero(f.Asset)
			k := Key{arg.Tenants[f.N-1], arg.OutTradeNos[f.N-1]}
			tx.unknown[k] = append(tx.unknown[k], s)
		}
		return err
	})
}

func (tx *Tx) lookupRefunds(p *commit.Pipe) {
	rows := tx.Refunds.Sorted()
	if len(rows) == 0 {
		return
	}
	var arg db.RefundLookupParams
	for _, r := range rows {
		arg.Tenants, arg.RefundNos = append(arg.Tenants, r.Key.Tenant), append(arg.RefundNos, r.Key.RefundNo)
	}
	p.Queue(func(d commit.DB) error {
		found, err := q.RefundLookup(p.Context(), d, arg)
		for i := range found {
			f := &found[i]
			r := rows[f.N-1]
			tx.Refunds.Load(r, Refund{RefundKey: r.Key, ID: f.RefundID, OutTradeNo: f.OutTradeNo, Gateway: f.Gateway,
				TransactionID: f.TransactionID, Currency: f.Currency, Asset: pg.OrZero(f.Asset),
				Scale: uint8(f.Scale), Amount: f.Amount, Account: pg.OrZero(f.Account), MovesOrder: f.MovesOrder,
				FlagID: pg.OrZero(f.FlagID), Reason: pg.OrZero(f.Reason), Principal: f.Principal,
				RequestID: f.RequestID, CreatedAt: f.CreatedAt, GatewayRefundID: pg.OrZero(f.GatewayRefundID),
				FailureCode: pg.OrZero(f.FailureCode), FailureText: pg.OrZero(f.FailureText),
				GivenBack: f.Given, Booked: f.Booked, NoticedAt: pg.OrZero(f.NoticedAt),
				OutcomeFlagID: pg.OrZero(f.OutcomeFlagID)})
		}
		return err
	})
}

func (tx *Tx) lookupFlags(p *commit.Pipe) {
	rows := tx.Flags.Sorted()
	if len(rows) == 0 {
		return
	}
	var arg db.FlagLookupParams
	for _, r := range rows {
		arg.Tenants, arg.FlagIds = append(arg.Tenants, r.Key.Tenant), append(arg.FlagIds, r.Key.ID)
	}
	p.Queue(func(d commit.DB) error {
		found, err := q.FlagLookup(p.Context(), d, arg)
		for i := range found {
			tx.Flags.Load(rows[found[i].N-1], flagOf(&found[i]))
		}
		return err
	})
}

func flagOf(f *db.FlagLookupRow) Flag {
	return Flag{Kind: FlagKind(f.Kind), Detail: f.Detail, Gateway: f.Gateway, TransactionID: f.TransactionID,
		OutTradeNo: f.OutTradeNo, OrderNo: pg.OrZero(f.OrderNo), Currency: f.Currency, Asset: pg.OrZero(f.Asset),
		Scale: uint8(f.Scale), Amount: f.Amount, Account: pg.OrZero(f.Account),
		AboutRefund: pg.OrZero(f.AboutRefund), AboutConsole: pg.OrZero(f.AboutConsole), RequestID: f.RequestID,
		CreatedAt: f.CreatedAt,
		Resolved: Resolved{Resolution: Resolution(pg.OrZero(f.Resolution)), Target: pg.OrZero(f.Target),
			RefundNo: pg.OrZero(f.RefundNo), Note: pg.OrZero(f.Note), Principal: pg.OrZero(f.ResolvedBy),
			RequestID: pg.OrZero(f.ResolvedRequestID), At: pg.OrZero(f.ResolvedAt)}}
}
