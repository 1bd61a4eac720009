// Package flow is where the domains come together: in one batch, in the one order in which
// their tables are locked, and the business operations that span several of them.
package flow

import (
	"log/slog"
	"slices"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/ledgerd/ledgerd/internal/claim"
	"github.com/ledgerd/ledgerd/internal/commit"
	"github.com/ledgerd/ledgerd/internal/fault"
	"github.com/ledgerd/ledgerd/internal/inbox"
	"github.com/ledgerd/ledgerd/internal/ledger"
	"github.com/ledgerd/ledgerd/internal/lock"
	"github.com/ledgerd/ledgerd/internal/notify"
	"github.com/ledgerd/ledgerd/internal/notify/code"
	"github.com/ledgerd/ledgerd/internal/notify/template"
	"github.com/ledgerd/ledgerd/internal/notify/webhook"
	"github.com/ledgerd/ledgerd/internal/token"
	"github.com/ledgerd/ledgerd/internal/work"
)

// The domains, in the one order in which every batch locks them, and each domain's rows sorted. A command that
// waits for a row holds none of a domain behind it.
var (
	// Lock keys of Execute come first: they may guard everything else.
	lockKeys = register(func(*Tx) *lock.Keys { return lock.NewKeys() })
	locks    = register(func(*Tx) *lock.Tx { return lock.NewTx() }, lock.NameConstraints()...)
	// Before rows that many share: a second caller with a token or a claim waits here, and holds none of those.
	tokens    = register(func(*Tx) *token.Tx { return token.NewTx() })
	claims    = register(func(*Tx) *claim.Tx { return claim.NewTx() }, claim.NameConstraints()...)
	works     = register(func(*Tx) *work.Tx { return work.NewTx() }, work.NameConstraints()...)
	inboxes   = register(func(*Tx) *inbox.Tx { return inbox.NewTx() }, inbox.NameConstraints()...)
	webhooks  = register(func(*Tx) *webhook.Tx { return webhook.NewTx() }, webhook.NameConstraints()...)
	templates = register(func(*Tx) *template.Tx { return template.NewTx() }, template.NameConstraints()...)
	// Before the counters of limits: a caller who guesses at a code keeps no other one waiting.
	codes    = register(func(tx *Tx) *code.Tx { return code.NewTx(tx.outbox) }, code.NameConstraints()...)
	messages = register(newMessages, notify.NameConstraints()...)
	// Accounts are hot: they are locked last, and held shortest.
	ledgers = register(func(*Tx) *ledger.Tx { return ledger.NewTx() }, ledger.NameConstraints()...)
)

func newMessages(tx *Tx) *notify.Tx {
	m := notify.NewTx(tx.outbox)
	m.Templates = func() *template.Tx { return templates.of(tx) }
	return m
}

// domain is one domain's place in the lock order.
type domain[P commit.Participant] struct {
	place int
	open  func(*Tx) P
}

var (
	domains         int
	nameConstraints []string // unique constraints over names that callers choose
)

// register gives a domain the next place.
func register[P commit.Participant](open func(*Tx) P, names ...string) *domain[P] {
	d := &domain[P]{domains, open}
	domains++
	nameConstraints = append(nameConstraints, names...)
	return d
}

// of is the domain's part in a batch, opened when Need first asks for it. A participant that is opened later
// would be neither loaded nor written.
func (d *domain[P]) of(tx *Tx) P {
	if p := tx.parts[d.place]; p != nil {
		return p.(P)
	}
	if tx.loaded {
		panic("flow: a command uses a domain that its Need did not name")
	}
	p := d.open(tx)
	tx.parts[d.place] = p
	return p
}

// Tx is one batch's transaction: the domains' parts in it. A domain that no command of the batch needs costs it
// nothing.
type Tx struct {
	parts  []commit.Participant // by their place
	outbox *notify.Outbox
	loaded bool
}

// NewTx makes an empty one, which refuses messages.
func NewTx() *Tx { return newTx(nil) }

func newTx(outbox *notify.Outbox) *Tx {
	return &Tx{parts: make([]commit.Participant, domains), outbox: outbox}
}

// Participants gives the domains that are needed, in their lock order.
func (tx *Tx) Participants() []commit.Participant {
	tx.loaded = true
	return slices.DeleteFunc(slices.Clone(tx.parts), func(p commit.Participant) bool { return p == nil })
}

// Claims has claimed keys.
func (tx *Tx) Claims() *claim.Tx { return claims.of(tx) }

// LockKeys has the lock keys of Execute.
func (tx *Tx) LockKeys() *lock.Keys { return lockKeys.of(tx) }

// Locks has locks that end by themselves.
func (tx *Tx) Locks() *lock.Tx { return locks.of(tx) }

// Ledger has accounts, transfers and holds.
func (tx *Tx) Ledger() *ledger.Tx { return ledgers.of(tx) }

// Tokens has submit tokens.
func (tx *Tx) Tokens() *token.Tx { return tokens.of(tx) }

// Work has work done elsewhere.
func (tx *Tx) Work() *work.Tx { return works.of(tx) }

// Inbox has the messages of consumers.
func (tx *Tx) Inbox() *inbox.Tx { return inboxes.of(tx) }

// Webhooks has the endpoints of webhooks.
func (tx *Tx) Webhooks() *webhook.Tx { return webhooks.of(tx) }

// Templates has the templates of messages.
func (tx *Tx) Templates() *template.Tx { return templates.of(tx) }

// Codes has verification codes.
func (tx *Tx) Codes() *code.Tx { return codes.of(tx) }

// Messages has messages to people and systems.
func (tx *Tx) Messages() *notify.Tx { return messages.of(tx) }

// Engine runs commands over Tx.
type Engine = commit.Engine[*Tx]

// Submission is a command on its way to the Engine.
type Submission = commit.Submission[*Tx]

// Command is a command over Tx.
type Command = commit.Command[*Tx]

// NewEngine starts an engine over all domains, which refuses messages.
func NewEngine(pool *pgxpool.Pool, instance string, metrics *commit.Metrics, log *slog.Logger) *Engine {
	return NewSendingEngine(pool, instance, metrics, log, nil)
}

// NewSendingEngine starts an engine over all domains, with an outbox for messages.
func NewSendingEngine(pool *pgxpool.Pool, instance string, metrics *commit.Metrics, log *slog.Logger,
	outbox *notify.Outbox) *Engine {
	return commit.New(commit.Config[*Tx]{
		Pool: pool, NewTx: func() *Tx { return newTx(outbox) }, Instance: instance, Metrics: metrics, Log: log,
		NameConstraints: nameConstraints,
	})
}

// Lock makes a command on locks one over Tx.
func Lock(c commit.Command[*lock.Tx]) Command { return on(locks, c) }

// Ledger makes a ledger command one over Tx.
func Ledger(c commit.Command[*ledger.Tx]) Command { return on(ledgers, c) }

// Token makes a command over submit tokens one over Tx.
func Token(c commit.Command[*token.Tx]) Command { return on(tokens, c) }

// Claim makes a command over claims one over Tx.
func Claim(c commit.Command[*claim.Tx]) Command { return on(claims, c) }

// Work makes a command on work done elsewhere one over Tx.
func Work(c commit.Command[*work.Tx]) Command { return on(works, c) }

// Inbox makes an inbox command one over Tx.
func Inbox(c commit.Command[*inbox.Tx]) Command { return on(inboxes, c) }

// Webhook makes a command over webhook endpoints one over Tx.
func Webhook(c commit.Command[*webhook.Tx]) Command { return on(webhooks, c) }

// Template makes a command on templates one over Tx.
func Template(c commit.Command[*template.Tx]) Command { return on(templates, c) }

// Notify makes a command over messages one over Tx.
func Notify(c commit.Command[*notify.Tx]) Command { return on(messages, c) }

// on makes a command over a domain one over Tx.
func on[P commit.Participant](d *domain[P], c commit.Command[P]) Command { return onDomain[P]{d, c} }

type onDomain[P commit.Participant] struct {
	domain  *domain[P]
	command commit.Command[P]
}

func (o onDomain[P]) Need(tx *Tx)               { o.command.Need(o.domain.of(tx)) }
func (o onDomain[P]) Apply(tx *Tx) (any, error) { return o.command.Apply(o.domain.of(tx)) }

// Guard is the command's own, if it has one.
func (o onDomain[P]) Guard(tx *Tx) error {
	if g, ok := o.command.(commit.Guarded[P]); ok {
		return g.Guard(o.domain.of(tx))
	}
	return nil
}

// Count is the command's own, if it has one.
func (o onDomain[P]) Count(tx *Tx) bool {
	c, ok := o.command.(commit.Counted[P])
	return ok && c.Count(o.domain.of(tx))
}

func (o onDomain[P]) stays() bool {
	_, guarded := o.command.(commit.Guarded[P])
	_, counted := o.command.(commit.Counted[P])
	return guarded || counted
}

// Stays reports whether a command has a part that stays when the command is refused.
func Stays(c Command) bool {
	if o, ok := c.(interface{ stays() bool }); ok {
		return o.stays()
	}
	_, guarded := c.(commit.Guarded[*Tx])
	_, counted := c.(commit.Counted[*Tx])
	return guarded || counted
}

// Refused is the command's own, if it has something to say.
func (o onDomain[P]) Refused(f *fault.Fault) {
	if t, ok := o.command.(Telling); ok {
		t.Refused(f)
	}
}
