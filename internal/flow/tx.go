package flow

import (
	"log/slog"
	"slices"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/ledgerd/ledgerd/internal/approval"
	"github.com/ledgerd/ledgerd/internal/audit"
	"github.com/ledgerd/ledgerd/internal/claim"
	"github.com/ledgerd/ledgerd/internal/commit"
	"github.com/ledgerd/ledgerd/internal/coupon"
	"github.com/ledgerd/ledgerd/internal/fault"
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
	"github.com/ledgerd/ledgerd/internal/sale"
	"github.com/ledgerd/ledgerd/internal/stock"
	"github.com/ledgerd/ledgerd/internal/token"
	"github.com/ledgerd/ledgerd/internal/work"
)

// The domains, in the global lock order; each domain sorts its rows. A batch that locks rows holds no row of a later
// domain while it waits. An optimistic batch inserts rows first, and then locks: see docs/ARCHITECTURE.md.
var (
	// Requests for approval come first, because the commands that they request may lock any other rows.
	approvals = register(func(*Tx) *approval.Tx { return approval.NewTx() })
	// Lock keys of Execute come next, because they may guard all other rows.
	lockKeys = register(func(*Tx) *lock.Keys { return lock.NewKeys() })
	locks    = register(func(*Tx) *lock.Tx { return lock.NewTx() }, lock.NameConstraints()...)
	// Tokens and claims precede rows that many calls share: a second call with the same token or claim waits here, and
	// holds none of the shared rows.
	tokens   = register(func(*Tx) *token.Tx { return token.NewTx() })
	claims   = register(func(*Tx) *claim.Tx { return claim.NewTx() }, claim.NameConstraints()...)
	works    = register(func(*Tx) *work.Tx { return work.NewTx() }, work.NameConstraints()...)
	inboxes  = register(func(*Tx) *inbox.Tx { return inbox.NewTx() }, inbox.NameConstraints()...)
	machines = register(func(*Tx) *machine.Tx { return machine.NewTx() }, machine.NameConstraints()...)
	// The rows of orders, coupons, payments and refunds are not locked: their instances are. Of payments, changed
	// gateways, console refunds and scheduled calls are locked.
	orders   = register(func(*Tx) *order.Tx { return order.NewTx() }, order.NameConstraints()...)
	coupons  = register(func(*Tx) *coupon.Tx { return coupon.NewTx() }, coupon.NameConstraints()...)
	payments = register(func(tx *Tx) *payment.Tx { return payment.NewTx(tx.memory.Gateways) },
		payment.NameConstraints()...)
	sales     = register(func(tx *Tx) *sale.Tx { return sale.NewTx(tx.memory.Sales) }, sale.NameConstraints()...)
	webhooks  = register(func(*Tx) *webhook.Tx { return webhook.NewTx() }, webhook.NameConstraints()...)
	templates = register(func(*Tx) *template.Tx { return template.NewTx() }, template.NameConstraints()...)
	// Codes precede the counters of limits: a caller that guesses a code delays no other caller.
	codes    = register(func(tx *Tx) *code.Tx { return code.NewTx(tx.outbox) }, code.NameConstraints()...)
	messages = register(newMessages, notify.NameConstraints()...)
	// Items and accounts are hot, so they are locked last and held for the shortest time.
	stocks = register(func(tx *Tx) *stock.Tx { return stock.NewTx(tx.direct, tx.memory.Layouts) },
		stock.NameConstraints()...)
	ledgers = register(func(*Tx) *ledger.Tx { return ledger.NewTx() }, ledger.NameConstraints()...)
	// The audit log has no locks.
	audits = register(func(*Tx) *audit.Tx { return audit.NewTx() })
)

func newMessages(tx *Tx) *notify.Tx {
	m := notify.NewTx(tx.outbox)
	m.Templates = func() *template.Tx { return templates.of(tx) }
	return m
}

// domain is one domain's place in the lock order.
type domain[P commit.Participant] struct {
	index int
	open  func(*Tx) P
}

var (
	domains         int
	nameConstraints []string // unique constraints on names that callers choose
)

// register adds a domain at the end of the lock order.
func register[P commit.Participant](open func(*Tx) P, names ...string) *domain[P] {
	d := &domain[P]{domains, open}
	domains++
	nameConstraints = append(nameConstraints, names...)
	return d
}

// of returns the domain's participant in a batch, and opens it when Need first asks for it. Once the engine has the
// participants, it panics: another one would be neither loaded nor written.
func (d *domain[P]) of(tx *Tx) P {
	if p := tx.participants[d.index]; p != nil {
		return p.(P)
	}
	if tx.loaded {
		panic("flow: a command uses a domain that its Need did not name")
	}
	p := d.open(tx)
	tx.participants[d.index] = p
	return p
}

// opened reports whether a command of the batch needs the domain.
func (d *domain[P]) opened(tx *Tx) bool { return tx.participants[d.index] != nil }

// Tx is one batch's transaction, with the participants of its domains. It opens only domains that a command needs.
type Tx struct {
	participants []commit.Participant // in lock order; nil: not needed
	outbox       *notify.Outbox
	memory       *Memory
	events       map[eventKey]*namedEvent
	ends         map[order.Key][]*ends  // of parts of orders
	hooks        map[int32]*webhook.All // endpoints of the tenants with events
	loaded       bool                   // the engine has the participants: no other can be opened
	direct       bool                   // for one direct command: stock uses the strategy of the command
}

// NewTx returns an empty Tx, which refuses messages.
func NewTx() *Tx { return newTx(nil, NewMemory(), false) }

func newTx(outbox *notify.Outbox, memory *Memory, direct bool) *Tx {
	return &Tx{participants: make([]commit.Participant, domains), outbox: outbox, memory: memory, direct: direct}
}

// Participants returns the participants that commands need, in lock order.
func (tx *Tx) Participants() []commit.Participant {
	tx.loaded = true
	return slices.DeleteFunc(slices.Clone(tx.participants), func(p commit.Participant) bool { return p == nil })
}

// Claims returns the participant of claimed keys.
func (tx *Tx) Claims() *claim.Tx { return claims.of(tx) }

// Approvals returns the participant of requests for approval.
func (tx *Tx) Approvals() *approval.Tx { return approvals.of(tx) }

// LockKeys returns the participant of the lock keys of Execute.
func (tx *Tx) LockKeys() *lock.Keys { return lockKeys.of(tx) }

// Ledger returns the participant of accounts, transfers and holds.
func (tx *Tx) Ledger() *ledger.Tx { return ledgers.of(tx) }

// Stock returns the participant of items and reservations.
func (tx *Tx) Stock() *stock.Tx { return stocks.of(tx) }

// Tokens returns the participant of submit tokens.
func (tx *Tx) Tokens() *token.Tx { return tokens.of(tx) }

// Inbox returns the participant of consumed messages.
func (tx *Tx) Inbox() *inbox.Tx { return inboxes.of(tx) }

// Machines returns the participant of state machines and their instances.
func (tx *Tx) Machines() *machine.Tx { return machines.of(tx) }

// Orders returns the participant of orders.
func (tx *Tx) Orders() *order.Tx { return orders.of(tx) }

// Coupons returns the participant of coupons.
func (tx *Tx) Coupons() *coupon.Tx { return coupons.of(tx) }

// Payments returns the participant of payments through gateways.
func (tx *Tx) Payments() *payment.Tx { return payments.of(tx) }

// Sales returns the participant of sales.
func (tx *Tx) Sales() *sale.Tx { return sales.of(tx) }

// Webhooks returns the participant of webhook endpoints.
func (tx *Tx) Webhooks() *webhook.Tx { return webhooks.of(tx) }

// Templates returns the participant of message templates.
func (tx *Tx) Templates() *template.Tx { return templates.of(tx) }

// Codes returns the participant of verification codes.
func (tx *Tx) Codes() *code.Tx { return codes.of(tx) }

// Messages returns the participant of notifications.
func (tx *Tx) Messages() *notify.Tx { return messages.of(tx) }

// Memory caches rows that seldom change. Commands use it for hints only.
type Memory struct {
	Layouts  *stock.Layouts
	Sales    *sale.Memory
	Gateways *payment.Gateways
}

// NewMemory returns an empty memory.
func NewMemory() *Memory { return &Memory{stock.NewLayouts(), sale.NewMemory(), payment.NewGateways()} }

// Engine runs commands over Tx.
type Engine struct {
	*commit.Engine[*Tx]
	*Memory
}

// Submission is a command with its parameters for the Engine.
type Submission = commit.Submission[*Tx]

// Command is a command over Tx.
type Command = commit.Command[*Tx]

// NewEngine starts an engine over all domains. It refuses messages.
func NewEngine(pool *pgxpool.Pool, instance string, metrics *commit.Metrics, log *slog.Logger) *Engine {
	return NewSendingEngine(pool, instance, metrics, log, nil)
}

// NewSendingEngine starts an engine over all domains, with an outbox for messages.
func NewSendingEngine(pool *pgxpool.Pool, instance string, metrics *commit.Metrics, log *slog.Logger,
	outbox *notify.Outbox) *Engine {
	memory := NewMemory()
	return &Engine{commit.New(commit.Config[*Tx]{
		Pool: pool, NewTx: func(direct bool) *Tx { return newTx(outbox, memory, direct) }, Instance: instance,
		Metrics: metrics, Log: log, NameConstraints: nameConstraints,
	}), memory}
}

// Approval adapts a command on requests for approval to Tx.
func Approval(c commit.Command[*approval.Tx]) Command { return on(approvals, c) }

// Lock adapts a command on locks to Tx.
func Lock(c commit.Command[*lock.Tx]) Command { return on(locks, c) }

// Ledger adapts a ledger command to Tx.
func Ledger(c commit.Command[*ledger.Tx]) Command { return on(ledgers, c) }

// Stock adapts a command on stock to Tx.
func Stock(c commit.Command[*stock.Tx]) Command { return on(stocks, c) }

// Token adapts a command on submit tokens to Tx.
func Token(c commit.Command[*token.Tx]) Command { return on(tokens, c) }

// Claim adapts a command on claims to Tx.
func Claim(c commit.Command[*claim.Tx]) Command { return on(claims, c) }

// Work adapts a command on work done elsewhere to Tx.
func Work(c commit.Command[*work.Tx]) Command { return on(works, c) }

// Inbox adapts an inbox command to Tx.
func Inbox(c commit.Command[*inbox.Tx]) Command { return on(inboxes, c) }

// Webhook adapts a command on webhook endpoints to Tx.
func Webhook(c commit.Command[*webhook.Tx]) Command { return on(webhooks, c) }

// Template adapts a command on templates to Tx.
func Template(c commit.Command[*template.Tx]) Command { return on(templates, c) }

// Notify adapts a command on messages to Tx.
func Notify(c commit.Command[*notify.Tx]) Command { return on(messages, c) }

// on adapts a command on a domain to Tx.
func on[P commit.Participant](d *domain[P], c commit.Command[P]) Command {
	return audited(onDomain[P]{d, c}, c)
}

type onDomain[P commit.Participant] struct {
	domain  *domain[P]
	command commit.Command[P]
}

func (o onDomain[P]) Need(tx *Tx) { o.command.Need(o.domain.of(tx)) }

func (o onDomain[P]) Apply(tx *Tx) (any, error) { return o.command.Apply(o.domain.of(tx)) }

// audited wraps c if the domain's command, from which c was adapted, changes settings: the wrapper adds the changes to
// the audit log. It has neither Guard nor Count: no such command has a part that survives a refusal.
func audited(c Command, domain any) Command {
	if changes, ok := domain.(audit.Audited); ok {
		return auditedCommand{c, changes}
	}
	return c
}

type auditedCommand struct {
	Command
	changes audit.Audited
}

func (c auditedCommand) Need(tx *Tx) {
	c.Command.Need(tx)
	audits.of(tx)
}

func (c auditedCommand) Apply(tx *Tx) (any, error) {
	answer, err := c.Command.Apply(tx)
	if _, repeat := answer.(commit.Repeat); repeat || err != nil {
		return answer, err
	}
	caller, changes := c.changes.Changes()
	for _, x := range changes {
		if err := audits.of(tx).Add(caller, x); err != nil {
			return nil, err
		}
	}
	return answer, nil
}

// Guard runs the command's Guard, if it has one.
func (o onDomain[P]) Guard(tx *Tx) error {
	if g, ok := o.command.(commit.Guarded[P]); ok {
		return g.Guard(o.domain.of(tx))
	}
	return nil
}

// Count runs the command's Count, if it has one.
func (o onDomain[P]) Count(tx *Tx) bool {
	c, ok := o.command.(commit.Counted[P])
	return ok && c.Count(o.domain.of(tx))
}

func (o onDomain[P]) survivesRefusal() bool {
	_, guarded := o.command.(commit.Guarded[P])
	_, counted := o.command.(commit.Counted[P])
	return guarded || counted
}

// SurvivesRefusal reports whether a command has a part that survives its refusal.
func SurvivesRefusal(c Command) bool {
	if o, ok := c.(interface{ survivesRefusal() bool }); ok {
		return o.survivesRefusal()
	}
	_, guarded := c.(commit.Guarded[*Tx])
	_, counted := c.(commit.Counted[*Tx])
	return guarded || counted
}

// NoteRefusal runs the command's NoteRefusal, if it has one.
func (o onDomain[P]) NoteRefusal(f *fault.Fault) {
	if n, ok := o.command.(RefusalNoter); ok {
		n.NoteRefusal(f)
	}
}
