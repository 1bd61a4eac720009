package server

// The services, background tasks and expiring tables of all domains.

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"time"

	"connectrpc.com/connect"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/ledgerd/ledgerd/gen/ledgerd/admin/v1/adminv1connect"
	"github.com/ledgerd/ledgerd/gen/ledgerd/approval/v1/approvalv1connect"
	"github.com/ledgerd/ledgerd/gen/ledgerd/audit/v1/auditv1connect"
	"github.com/ledgerd/ledgerd/gen/ledgerd/batch/v1/batchv1connect"
	"github.com/ledgerd/ledgerd/gen/ledgerd/id/v1/idv1connect"
	"github.com/ledgerd/ledgerd/gen/ledgerd/idempotency/v1/idempotencyv1connect"
	"github.com/ledgerd/ledgerd/gen/ledgerd/inbox/v1/inboxv1connect"
	"github.com/ledgerd/ledgerd/gen/ledgerd/ledger/v1/ledgerv1connect"
	"github.com/ledgerd/ledgerd/gen/ledgerd/lock/v1/lockv1connect"
	"github.com/ledgerd/ledgerd/gen/ledgerd/machine/v1/machinev1connect"
	"github.com/ledgerd/ledgerd/gen/ledgerd/notify/v1/notifyv1connect"
	"github.com/ledgerd/ledgerd/gen/ledgerd/order/v1/orderv1connect"
	"github.com/ledgerd/ledgerd/gen/ledgerd/payment/v1/paymentv1connect"
	"github.com/ledgerd/ledgerd/gen/ledgerd/sale/v1/salev1connect"
	"github.com/ledgerd/ledgerd/gen/ledgerd/stock/v1/stockv1connect"
	"github.com/ledgerd/ledgerd/internal/access"
	"github.com/ledgerd/ledgerd/internal/approval"
	"github.com/ledgerd/ledgerd/internal/audit"
	"github.com/ledgerd/ledgerd/internal/claim"
	"github.com/ledgerd/ledgerd/internal/clean"
	"github.com/ledgerd/ledgerd/internal/commit"
	"github.com/ledgerd/ledgerd/internal/coupon"
	"github.com/ledgerd/ledgerd/internal/flow"
	"github.com/ledgerd/ledgerd/internal/inbox"
	"github.com/ledgerd/ledgerd/internal/ledger"
	"github.com/ledgerd/ledgerd/internal/lock"
	"github.com/ledgerd/ledgerd/internal/machine"
	"github.com/ledgerd/ledgerd/internal/notify"
	"github.com/ledgerd/ledgerd/internal/notify/code"
	"github.com/ledgerd/ledgerd/internal/notify/template"
	"github.com/ledgerd/ledgerd/internal/notify/webhook"
	"github.com/ledgerd/ledgerd/internal/order"
	"github.com/ledgerd/ledgerd/internal/payment"
	"github.com/ledgerd/ledgerd/internal/rpc"
	"github.com/ledgerd/ledgerd/internal/sale"
	"github.com/ledgerd/ledgerd/internal/stock"
	"github.com/ledgerd/ledgerd/internal/token"
	"github.com/ledgerd/ledgerd/internal/work"
)

// serveDomains serves the services of all domains.
func (s *Server) serveDomains(serve func(path string, h http.Handler), options []connect.HandlerOption) {
	books := ledger.NewReader(s.reads)
	serve(ledgerv1connect.NewLedgerServiceHandler(&rpc.Ledger{Mutations: s.mutations, Reader: books,
		Tail: ledger.NewTail(books), Closing: s.closing}, options...))
	serve(batchv1connect.NewBatchServiceHandler(&rpc.Batch{Mutations: s.mutations}, options...))
	serve(idempotencyv1connect.NewIdempotencyServiceHandler(&rpc.Idempotency{Mutations: s.mutations,
		Claims: claim.NewReader(s.reads),
		Works:  rpc.NewWorks(s.reads, s.registry, s.log, s.closing)}, options...))
	serve(idv1connect.NewIdServiceHandler(&rpc.IDs{Generator: s.ids}, options...))
	serve(lockv1connect.NewLockServiceHandler(&rpc.Lock{Mutations: s.mutations, Reader: lock.NewReader(s.reads),
		Waiting: s.locks.waiting,
		Metrics: s.locks.metrics, Closing: s.closing}, options...))
	serve(stockv1connect.NewStockServiceHandler(&rpc.Stock{Mutations: s.mutations, Reader: stock.NewReader(s.reads)},
		options...))
	serve(inboxv1connect.NewInboxServiceHandler(&rpc.Inbox{Mutations: s.mutations, Reader: inbox.NewReader(s.reads)},
		options...))
	serve(machinev1connect.NewMachineServiceHandler(
		&rpc.Machines{Mutations: s.mutations, Reader: machine.NewReader(s.reads)}, options...))
	serve(orderv1connect.NewOrderServiceHandler(&rpc.Orders{Mutations: s.mutations, Reader: order.NewReader(s.reads),
		Machines: machine.NewReader(s.reads)}, options...))
	serve(approvalv1connect.NewApprovalServiceHandler(&rpc.Approvals{Mutations: s.mutations,
		Reader: approval.NewReader(s.reads)}, options...))
	serve(auditv1connect.NewAuditServiceHandler(&rpc.Audit{Reader: audit.NewReader(s.reads)}, options...))
	serve(salev1connect.NewSaleServiceHandler(&rpc.Sales{Mutations: s.mutations, Reader: sale.NewReader(s.reads),
		Stock: stock.NewReader(s.reads), Coupons: coupon.NewReader(s.reads)}, options...))
	serve(paymentv1connect.NewPaymentServiceHandler(&rpc.Payments{Mutations: s.mutations,
		Reader: payment.NewReader(s.reads), Dispatcher: s.dispatcher, Take: s.takeCallback}, options...))
	serve(notifyv1connect.NewWebhookServiceHandler(&rpc.Webhooks{Mutations: s.mutations,
		Reader: webhook.NewReader(s.reads), Master: s.options.Secret}, options...))
	serve(notifyv1connect.NewNotifyServiceHandler(&rpc.Notify{Mutations: s.mutations,
		Reader: notify.NewReader(s.reads, s.outbox), Templates: template.NewReader(s.reads)}, options...))
	admin := &rpc.Admin{}
	if s.admin != nil {
		admin.Administration = access.Administer(s.admin)
	}
	serve(adminv1connect.NewAdminServiceHandler(admin, options...))
}

// runDomains starts the background tasks of the domains.
func (s *Server) runDomains(ctx context.Context) {
	s.every(ctx, time.Second, "expire holds", handle(s, afterDelay(ledger.DueHolds), expireHolds))
	s.every(ctx, time.Second, "expire reservations", handle(s, afterDelay(stock.DueItems), expireReservations))
	s.every(ctx, time.Second, "fire timers", handle(s, machine.DueInstances, fireTimers))
	s.every(ctx, time.Second, "flag unknown payments", handle(s, payment.DueFlags, flagUnknowns))
	s.every(ctx, 10*time.Second, "measure payments", s.measurePayments)
	s.work.Go(func() { s.pay(ctx) })
	s.every(ctx, 30*time.Second, "clean locks", s.locks.clean)
	s.work.Go(func() { s.locks.waiting.Run(ctx) })
	s.work.Go(func() { s.deliver(ctx) })
	s.every(ctx, time.Hour, "create and drop partitions of messages", s.keepPartitions)
}

// expiring returns the tables whose expired rows are deleted.
func expiring() []clean.Table {
	return slices.Concat([]clean.Table{commit.Keys(), commit.Counts(), token.Tokens(), claim.Keys(), work.Works(),
		code.Codes()}, inbox.Tables(), notify.Tables())
}

// expiryDelay is the time between the end of a hold or a reservation and its expiry by a task. Before that, the timer
// of an order frees the holds and reservations of the order in one commit.
const expiryDelay = 3 * time.Second

// afterDelay finds what was due expiryDelay ago.
func afterDelay[T any](find func(context.Context, *pgxpool.Pool, time.Duration, T, int32) ([]T, error)) func(
	context.Context, *pgxpool.Pool, T, int32) ([]T, error) {
	return func(ctx context.Context, pool *pgxpool.Pool, after T, limit int32) ([]T, error) {
		return find(ctx, pool, expiryDelay, after, limit)
	}
}

// expireHolds expires the due holds of each account together.
func expireHolds(due []ledger.DueHold) (commands []flow.Submission) {
	for _, a := range ledger.AccountsOf(due) {
		commands = append(commands, flow.Submission{Tenant: a.Tenant, Rows: 1,
			Command: flow.Ledger(&ledger.ExpireCommand{Account: a})})
	}
	return commands
}

// expireReservations expires the due reservations of each item together.
func expireReservations(due []stock.DueItem) (commands []flow.Submission) {
	for _, i := range stock.ItemsOf(due) {
		commands = append(commands, flow.Submission{Tenant: i.Tenant, Rows: 1,
			Command: flow.Stock(&stock.ExpireCommand{Item: i})})
	}
	return commands
}

// fireTimers records the moves of instances whose timer has fired. Each move has a request id of its own, like a call:
// by this id audit.order_story finds the event of a move among others of the batch.
func fireTimers(due []machine.Due) (commands []flow.Submission) {
	for _, d := range due {
		caller := commit.Caller{Tenant: d.Tenant, Principal: scheduler,
			RequestID: fmt.Sprintf("%s.%d", scheduler, d.ID)}
		commands = append(commands, flow.Submission{Tenant: d.Tenant, Rows: 2,
			Command: flow.Fire(&machine.FireCommand{Caller: caller, Key: d.Key})})
	}
	return commands
}
