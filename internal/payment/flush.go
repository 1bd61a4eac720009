package payment

import (
	"encoding/json"

	"github.com/ledgerd/ledgerd/internal/commit"
	"github.com/ledgerd/ledgerd/internal/payment/internal/db"
	"github.com/ledgerd/ledgerd/internal/pg"
)

// Flush writes the changes, table by table.
func (tx *Tx) Flush(p *commit.Pipe) {
	tx.flushGateways(p)
	tx.flushPayments(p)
	tx.flushTransactions(p)
	tx.flushNotices(p)
	tx.flushRefunds(p)
	tx.flushConsoles(p)
	tx.flushFlags(p)
	tx.flushCalls(p)
}

func (tx *Tx) flushGateways(p *commit.Pipe) {
	for _, rows := range [][]*GatewayRow{tx.Gateways.Fresh(), tx.Gateways.Changed()} {
		for _, r := range rows {
			c := tx.writer[r.Key]
			arg := db.GatewayPutParams{TenantID: r.Key.Tenant, Gateway: r.Key.Gateway, Clearing: r.Value.Clearing,
				Suspense: r.Value.Suspense, Payee: r.Value.Payee, Principal: c.Principal, RequestID: c.RequestID,
				Now: tx.Now}
			p.Queue(func(d commit.DB) error { return q.GatewayPut(p.Context(), d, arg) })
		}
	}
}

func (tx *Tx) flushPayments(p *commit.Pipe) {
	if rows := tx.Payments.Fresh(); len(rows) > 0 {
		arg := db.PaymentInsertParams{Now: tx.Now}
		for _, r := range rows {
			x := &r.Value
			arg.Tenants, arg.OutTradeNos = append(arg.Tenants, r.Key.Tenant), append(arg.OutTradeNos, r.Key.OutTradeNo)
			arg.PaymentIds, arg.OrderNos = append(arg.PaymentIds, x.ID), append(arg.OrderNos, x.OrderNo)
			arg.Gateways, arg.PayTypes = append(arg.Gateways, x.Gateway), append(arg.PayTypes, x.PayType)
			arg.Attempts, arg.Assets = append(arg.Attempts, x.Attempt), append(arg.Assets, x.Asset)
			arg.Scales, arg.Amounts = append(arg.Scales, int16(x.Scale)), append(arg.Amounts, x.Amount)
			arg.Payees, arg.Descriptions = append(arg.Payees, x.Payee), append(arg.Descriptions, x.Description)
			arg.Payers, arg.PayerIps = append(arg.Payers, x.Payer), append(arg.PayerIps, x.PayerIP)
			arg.ReturnUrls, arg.ExpiresAt = append(arg.ReturnUrls, x.ReturnURL), append(arg.ExpiresAt, x.ExpiresAt)
			arg.TokenHashes = append(arg.TokenHashes, pg.NotNil(x.TokenHash))
			arg.Earlies = append(arg.Earlies, x.Early)
			arg.Messages = append(arg.Messages, pg.NotNil(x.Messages))
			arg.Principals, arg.RequestIds = append(arg.Principals, x.Principal), append(arg.RequestIds, x.RequestID)
			arg.TransactionIds, arg.PaidAt = append(arg.TransactionIds, x.TransactionID), append(arg.PaidAt, x.PaidAt)
		}
		p.Queue(func(d commit.DB) error { return q.PaymentInsert(p.Context(), d, arg) })
	}
	rows := tx.Payments.Changed()
	if len(rows) == 0 {
		return
	}
	var arg db.PaymentUpdateParams
	for _, r := range rows {
		x := &r.Value.Progress
		arg.Tenants, arg.OutTradeNos = append(arg.Tenants, r.Key.Tenant), append(arg.OutTradeNos, r.Key.OutTradeNo)
		arg.TransactionIds, arg.PaidAt = append(arg.TransactionIds, x.TransactionID), append(arg.PaidAt, x.PaidAt)
		arg.Credentials = append(arg.Credentials, pg.JSON(x.Credential))
		arg.FailureCodes = append(arg.FailureCodes, x.FailureCode)
		arg.FailureTexts, arg.Decided = append(arg.FailureTexts, x.FailureText), append(arg.Decided, x.Decided)
	}
	p.Queue(func(d commit.DB) error { return q.PaymentUpdate(p.Context(), d, arg) })
}

func (tx *Tx) flushTransactions(p *commit.Pipe) {
	if rows := tx.Transactions.Fresh(); len(rows) > 0 {
		arg := db.TransactionInsertParams{Now: tx.Now}
		for _, r := range rows {
			x := &r.Value
			arg.Tenants, arg.Gateways = append(arg.Tenants, r.Key.Tenant), append(arg.Gateways, r.Key.Gateway)
			arg.TransactionIds = append(arg.TransactionIds, r.Key.ID)
			arg.OutTradeNos, arg.NoticeIds = append(arg.OutTradeNos, x.OutTradeNo), append(arg.NoticeIds, x.NoticeID)
			arg.Currencies, arg.Assets = append(arg.Currencies, x.Currency), append(arg.Assets, x.Asset)
			arg.Scales, arg.Amounts = append(arg.Scales, int16(x.Scale)), append(arg.Amounts, x.Amount)
			arg.Accounts = append(arg.Accounts, x.Account)
			arg.Refunding, arg.Refunded = append(arg.Refunding, x.Refunding), append(arg.Refunded, x.Refunded)
		}
		p.Queue(func(d commit.DB) error { return q.TransactionInsert(p.Context(), d, arg) })
	}
	rows := tx.Transactions.Changed()
	if len(rows) == 0 {
		return
	}
	var arg db.TransactionUpdateParams
	for _, r := range rows {
		arg.Tenants, arg.Gateways = append(arg.Tenants, r.Key.Tenant), append(arg.Gateways, r.Key.Gateway)
		arg.TransactionIds = append(arg.TransactionIds, r.Key.ID)
		arg.Accounts = append(arg.Accounts, r.Value.Account)
		arg.Refunding = append(arg.Refunding, r.Value.Refunding)
		arg.Refunded = append(arg.Refunded, r.Value.Refunded)
	}
	p.Queue(func(d commit.DB) error { return q.TransactionUpdate(p.Context(), d, arg) })
}

func (tx *Tx) flushNotices(p *commit.Pipe) {
	rows := tx.Notices.Fresh()
	if len(rows) == 0 {
		return
	}
	var names db.NoticeNameInsertParams
	arg := db.NoticeInsertParams{Now: tx.Now}
	for _, r := range rows {
		v, s := &r.Value, r.Value.received
		names.Tenants, names.Gateways = append(names.Tenants, r.Key.Tenant), append(names.Gateways, r.Key.Gateway)
		names.NotifyIds, names.NoticeIds = append(names.NotifyIds, r.Key.ID), append(names.NoticeIds, v.ID)
		if s == nil {
			continue // another name of a notice
		}
		arg.Tenants, arg.NoticeIds = append(arg.Tenants, r.Key.Tenant), append(arg.NoticeIds, v.ID)
		arg.Gateways, arg.NotifyIds = append(arg.Gateways, r.Key.Gateway), append(arg.NotifyIds, r.Key.ID)
		arg.Callbacks, arg.Kinds = append(arg.Callbacks, s.Callback), append(arg.Kinds, string(s.Kind))
		arg.OutTradeNos = append(arg.OutTradeNos, s.OutTradeNo)
		arg.TransactionIds = append(arg.TransactionIds, s.TransactionID)
		arg.RefundNos, arg.Currencies = append(arg.RefundNos, s.RefundNo), append(arg.Currencies, s.Currency)
		arg.Amounts, arg.Assets = append(arg.Amounts, v.Report.Amount), append(arg.Assets, s.Asset)
		fields, err := json.Marshal(s.Notice)
		if err != nil {
			panic(err) // texts, times and numbers always encode
		}
		arg.Fields, arg.Effects = append(arg.Fields, fields), append(arg.Effects, string(v.Effect))
		arg.Details, arg.Headers = append(arg.Details, v.detail), append(arg.Headers, pg.JSON(s.Header))
		arg.Bodies, arg.RequestIds = append(arg.Bodies, pg.NotNil(s.Body)), append(arg.RequestIds, v.request)
		arg.OccurredAt = append(arg.OccurredAt, s.At)
	}
	p.Queue(func(d commit.DB) error { return q.NoticeNameInsert(p.Context(), d, names) })
	p.Queue(func(d commit.DB) error { return q.NoticeInsert(p.Context(), d, arg) })
}

func (tx *Tx) flushRefunds(p *commit.Pipe) {
	if rows := tx.Refunds.Fresh(); len(rows) > 0 {
		arg := db.RefundInsertParams{Now: tx.Now}
		for _, r := range rows {
			x := &r.Value
			arg.Tenants, arg.RefundNos = append(arg.Tenants, r.Key.Tenant), append(arg.RefundNos, r.Key.RefundNo)
			arg.RefundIds, arg.OutTradeNos = append(arg.RefundIds, x.ID), append(arg.OutTradeNos, x.OutTradeNo)
			arg.Gateways = append(arg.Gateways, x.Gateway)
			arg.TransactionIds = append(arg.TransactionIds, x.TransactionID)
			arg.Currencies, arg.Assets = append(arg.Currencies, x.Currency), append(arg.Assets, x.Asset)
			arg.Scales, arg.Amounts = append(arg.Scales, int16(x.Scale)), append(arg.Amounts, x.Amount)
			arg.Accounts, arg.MovesOrder = append(arg.Accounts, x.Account), append(arg.MovesOrder, x.MovesOrder)
			arg.FlagIds = append(arg.FlagIds, x.FlagID)
			arg.Reasons, arg.Principals = append(arg.Reasons, x.Reason), append(arg.Principals, x.Principal)
			arg.RequestIds = append(arg.RequestIds, x.RequestID)
		}
		p.Queue(func(d commit.DB) error { return q.RefundInsert(p.Context(), d, arg) })
	}
	rows := tx.Refunds.Changed()
	if len(rows) == 0 {
		return
	}
	var arg db.RefundUpdateParams
	for _, r := range rows {
		x := &r.Value
		arg.Tenants, arg.RefundNos = append(arg.Tenants, r.Key.Tenant), append(arg.RefundNos, r.Key.RefundNo)
		arg.GatewayRefundIds = append(arg.GatewayRefundIds, x.GatewayRefundID)
		arg.FailureCodes = append(arg.FailureCodes, x.FailureCode)
		arg.FailureTexts = append(arg.FailureTexts, x.FailureText)
		arg.Given, arg.Booked = append(arg.Given, x.GivenBack), append(arg.Booked, x.Booked)
		arg.NoticedAt = append(arg.NoticedAt, x.NoticedAt)
		arg.OutcomeFlagIds = append(arg.OutcomeFlagIds, x.OutcomeFlagID)
	}
	p.Queue(func(d commit.DB) error { return q.RefundUpdate(p.Context(), d, arg) })
}

func (tx *Tx) flushFlags(p *commit.Pipe) {
	if rows := tx.Flags.Fresh(); len(rows) > 0 {
		arg := db.FlagInsertParams{Now: tx.Now}
		for _, r := range rows {
			x := &r.Value
			arg.Tenants, arg.FlagIds = append(arg.Tenants, r.Key.Tenant), append(arg.FlagIds, r.Key.ID)
			arg.Kinds, arg.Details = append(arg.Kinds, string(x.Kind)), append(arg.Details, x.Detail)
			arg.Gateways = append(arg.Gateways, x.Gateway)
			arg.TransactionIds = append(arg.TransactionIds, x.TransactionID)
			arg.OutTradeNos, arg.OrderNos = append(arg.OutTradeNos, x.OutTradeNo), append(arg.OrderNos, x.OrderNo)
			arg.Currencies, arg.Assets = append(arg.Currencies, x.Currency), append(arg.Assets, x.Asset)
			arg.Scales, arg.Amounts = append(arg.Scales, int16(x.Scale)), append(arg.Amounts, x.Amount)
			arg.Accounts, arg.AboutRefunds = append(arg.Accounts, x.Account), append(arg.AboutRefunds, x.AboutRefund)
			arg.AboutConsoles = append(arg.AboutConsoles, x.AboutConsole)
			arg.RequestIds = append(arg.RequestIds, x.RequestID)
		}
		p.Queue(func(d commit.DB) error { return q.FlagInsert(p.Context(), d, arg) })
	}
	rows := tx.Flags.Changed()
	if len(rows) == 0 {
		return
	}
	var arg db.FlagResolveParams
	for _, r := range rows {
		x := &r.Value.Resolved
		arg.Tenants, arg.FlagIds = append(arg.Tenants, r.Key.Tenant), append(arg.FlagIds, r.Key.ID)
		arg.Resolutions = append(arg.Resolutions, string(x.Resolution))
		arg.Targets, arg.RefundNos = append(arg.Targets, x.Target), append(arg.RefundNos, x.RefundNo)
		arg.Notes, arg.ResolvedBy = append(arg.Notes, x.Note), append(arg.ResolvedBy, x.Principal)
		arg.ResolvedRequestIds = append(arg.ResolvedRequestIds, x.RequestID)
		arg.ResolvedAt = append(arg.ResolvedAt, x.At)
	}
	p.Queue(func(d commit.DB) error { return q.FlagResolve(p.Context(), d, arg) })
}
