// Package flow is where the domains come together: the books of one batch, in the one order in which
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
	"github.com/ledgerd/ledgerd/internal/lease"
	"github.com/ledgerd/ledgerd/internal/ledger"
	"github.com/ledgerd/ledgerd/internal/notify"
	"github.com/ledgerd/ledgerd/internal/notify/code"
	"github.com/ledgerd/ledgerd/internal/notify/template"
	"github.com/ledgerd/ledgerd/internal/notify/webhook"
	"github.com/ledgerd/ledgerd/internal/record"
	"github.com/ledgerd/ledgerd/internal/token"
)

// The domains, in the one order in which every batch locks them, and each domain's rows sorted. A command that
// waits for a row holds none of a domain behind it.
var (
	// Lock keys of Execute come first: they may guard everything else.
	lockKeys = register(func(*Books) *lease.Keys { return lease.NewKeys() })
	leases   = register(func(*Books) *lease.Book { return lease.NewBook() }, lease.NameConstraints()...)
	// Before rows that many share: a second caller with a token or a claim waits here, and holds none of those.
	tokens    = register(func(*Books) *token.Book { return token.NewBook() })
	claims    = register(func(*Books) *claim.Book { return claim.NewBook() }, claim.NameConstraints()...)
	records   = register(func(*Books) *record.Book { return record.NewBook() }, record.NameConstraints()...)
	inboxes   = register(func(*Books) *inbox.Book { return inbox.NewBook() }, inbox.NameConstraints()...)
	webhooks  = register(func(*Books) *webhook.Book { return webhook.NewBook() }, webhook.NameConstraints()...)
	templates = register(func(*Books) *template.Book { return template.NewBook() }, template.NameConstraints()...)
	// Before the counters of limits: a caller who guesses at a code keeps no other one waiting.
	codes    = register(func(b *Books) *code.Book { return code.NewBook(b.outbox) }, code.NameConstraints()...)
	messages = register(newMessages, notify.NameConstraints()...)
	// Accounts are hot: they are locked last, and held shortest.
	ledgers = register(func(*Books) *ledger.Book { return ledger.NewBook() }, ledger.NameConstraints()...)
)

func newMessages(b *Books) *notify.Book {
	m := notify.NewBook(b.outbox)
	m.Templates = func() *template.Book { return templates.of(b) }
	return m
}

// domain is one domain's place in the lock order.
type domain[P commit.Participant] struct {
	place int
	open  func(*Books) P
}

var (
	domains         int
	nameConstraints []string // unique constraints over names that callers choose
)

// register gives a domain the next place.
func register[P commit.Participant](open func(*Books) P, names ...string) *domain[P] {
	d := &domain[P]{domains, open}
	domains++
	nameConstraints = append(nameConstraints, names...)
	return d
}

// of is the domain's part in a batch, opened when Need first asks for it. A participant that is opened later
// would be neither loaded nor written.
func (d *domain[P]) of(b *Books) P {
	if p := b.parts[d.place]; p != nil {
		return p.(P)
	}
	if b.loaded {
		panic("flow: a command works on a domain that its Need did not ask for")
	}
	p := d.open(b)
	b.parts[d.place] = p
	return p
}

// Books are the domains' parts in one batch. A domain that no command of the batch needs costs it nothing.
type Books struct {
	parts  []commit.Participant // by their place
	outbox *notify.Outbox
	loaded bool
}

// NewBooks makes empty books, which refuse messages.
func NewBooks() *Books { return newBooks(nil) }

func newBooks(outbox *notify.Outbox) *Books {
	return &Books{parts: make([]commit.Participant, domains), outbox: outbox}
}

// Participants gives the domains that are needed, in their lock order.
func (b *Books) Participants() []commit.Participant {
	b.loaded = true
	return slices.DeleteFunc(slices.Clone(b.parts), func(p commit.Participant) bool { return p == nil })
}

// Claims has claimed keys.
func (b *Books) Claims() *claim.Book { return claims.of(b) }

// LockKeys has the lock keys of Execute.
func (b *Books) LockKeys() *lease.Keys { return lockKeys.of(b) }

// Leases has lease locks.
func (b *Books) Leases() *lease.Book { return leases.of(b) }

// Ledger has accounts, transfers and holds.
func (b *Books) Ledger() *ledger.Book { return ledgers.of(b) }

// Tokens has submit tokens.
func (b *Books) Tokens() *token.Book { return tokens.of(b) }

// Records has work done elsewhere.
func (b *Books) Records() *record.Book { return records.of(b) }

// Inbox has the messages of consumers.
func (b *Books) Inbox() *inbox.Book { return inboxes.of(b) }

// Webhooks has the endpoints of webhooks.
func (b *Books) Webhooks() *webhook.Book { return webhooks.of(b) }

// Templates has the templates of messages.
func (b *Books) Templates() *template.Book { return templates.of(b) }

// Codes has verification codes.
func (b *Books) Codes() *code.Book { return codes.of(b) }

// Messages has messages to people and systems.
func (b *Books) Messages() *notify.Book { return messages.of(b) }

// Engine runs commands over Books.
type Engine = commit.Engine[*Books]

// Work is a command on its way to the Engine.
type Work = commit.Work[*Books]

// Command is a command over Books.
type Command = commit.Command[*Books]

// NewEngine starts an engine over all domains, which refuses messages.
func NewEngine(pool *pgxpool.Pool, instance string, metrics *commit.Metrics, log *slog.Logger) *Engine {
	return NewSendingEngine(pool, instance, metrics, log, nil)
}

// NewSendingEngine starts an engine over all domains, with an outbox for messages.
func NewSendingEngine(pool *pgxpool.Pool, instance string, metrics *commit.Metrics, log *slog.Logger, outbox *notify.Outbox) *Engine {
	return commit.New(commit.Config[*Books]{
		Pool: pool, NewTx: func() *Books { return newBooks(outbox) }, Instance: instance, Metrics: metrics, Log: log,
		NameConstraints: nameConstraints,
	})
}

// Lease makes a command on locks one over Books.
func Lease(c commit.Command[*lease.Book]) Command { return on(leases, c) }

// Ledger makes a ledger command one over Books.
func Ledger(c commit.Command[*ledger.Book]) Command { return on(ledgers, c) }

// Token makes a command over submit tokens one over Books.
func Token(c commit.Command[*token.Book]) Command { return on(tokens, c) }

// Claim makes a command over claims one over Books.
func Claim(c commit.Command[*claim.Book]) Command { return on(claims, c) }

// Record makes a command on work done elsewhere one over Books.
func Record(c commit.Command[*record.Book]) Command { return on(records, c) }

// Inbox makes an inbox command one over Books.
func Inbox(c commit.Command[*inbox.Book]) Command { return on(inboxes, c) }

// Webhook makes a command over webhook endpoints one over Books.
func Webhook(c commit.Command[*webhook.Book]) Command { return on(webhooks, c) }

// Template makes a command on templates one over Books.
func Template(c commit.Command[*template.Book]) Command { return on(templates, c) }

// Notify makes a command over messages one over Books.
func Notify(c commit.Command[*notify.Book]) Command { return on(messages, c) }

// on makes a command over a domain one over Books.
func on[P commit.Participant](d *domain[P], c commit.Command[P]) Command { return onDomain[P]{d, c} }

type onDomain[P commit.Participant] struct {
	domain  *domain[P]
	command commit.Command[P]
}

func (o onDomain[P]) Need(b *Books)               { o.command.Need(o.domain.of(b)) }
func (o onDomain[P]) Apply(b *Books) (any, error) { return o.command.Apply(o.domain.of(b)) }

// Guard is the command's own, if it has one.
func (o onDomain[P]) Guard(b *Books) error {
	if g, ok := o.command.(commit.Guarded[P]); ok {
		return g.Guard(o.domain.of(b))
	}
	return nil
}

// Count is the command's own, if it has one.
func (o onDomain[P]) Count(b *Books) bool {
	c, ok := o.command.(commit.Counted[P])
	return ok && c.Count(o.domain.of(b))
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
	_, guarded := c.(commit.Guarded[*Books])
	_, counted := c.(commit.Counted[*Books])
	return guarded || counted
}

// Refused is the command's own, if it has something to say.
func (o onDomain[P]) Refused(f *fault.Fault) {
	if t, ok := o.command.(Telling); ok {
		t.Refused(f)
	}
}
