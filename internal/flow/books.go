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

// Books are the domains' books that one batch works on. A book is made when Need first asks for it: what
// no command of a batch needs costs the batch nothing.
type Books struct {
	lockKeys *lease.Keys
	leases   *lease.Book
	token    *token.Book
	claims   *claim.Book
	records  *record.Book
	inbox    *inbox.Book
	webhooks *webhook.Book
	messages *notify.Book
	ledger   *ledger.Book
	template *template.Book
	codes    *code.Book
	outbox   *notify.Outbox
	loaded   bool
}

// NewBooks makes empty books.
func NewBooks() *Books { return &Books{} }

// Claims has claimed keys.
func (b *Books) Claims() *claim.Book { return open(b, &b.claims, claim.NewBook) }

// LockKeys has the lock keys of Execute.
func (b *Books) LockKeys() *lease.Keys { return open(b, &b.lockKeys, lease.NewKeys) }

// Leases has lease locks.
func (b *Books) Leases() *lease.Book { return open(b, &b.leases, lease.NewBook) }

// Ledger has accounts, transfers and holds.
func (b *Books) Ledger() *ledger.Book { return open(b, &b.ledger, ledger.NewBook) }

// Tokens has submit tokens.
func (b *Books) Tokens() *token.Book { return open(b, &b.token, token.NewBook) }

// Records has work done elsewhere.
func (b *Books) Records() *record.Book { return open(b, &b.records, record.NewBook) }

// Inbox has the messages of consumers.
func (b *Books) Inbox() *inbox.Book { return open(b, &b.inbox, inbox.NewBook) }

// Webhooks has the endpoints of webhooks.
func (b *Books) Webhooks() *webhook.Book { return open(b, &b.webhooks, webhook.NewBook) }

// Templates has the templates of messages.
func (b *Books) Templates() *template.Book { return open(b, &b.template, template.NewBook) }

// Codes has verification codes.
func (b *Books) Codes() *code.Book {
	return open(b, &b.codes, func() *code.Book { return code.NewBook(b.outbox) })
}

// Messages has messages to people and systems.
func (b *Books) Messages() *notify.Book {
	return open(b, &b.messages, func() *notify.Book {
		m := notify.NewBook(b.outbox)
		m.Templates = b.Templates
		return m
	})
}

// open makes a book when it is needed. What is asked for later would not be loaded, nor written.
func open[T any](b *Books, book **T, make func() *T) *T {
	if *book == nil {
		if b.loaded {
			panic("flow: a command works on a book that its Need did not ask for")
		}
		*book = make()
	}
	return *book
}

// Tables is the lock order: every batch locks the domains in it, and each domain's rows sorted.
func (b *Books) Tables() (tables []commit.Table) {
	b.loaded = true
	if b.lockKeys != nil { // before everything else: they may guard it
		tables = append(tables, b.lockKeys)
	}
	if b.leases != nil {
		tables = append(tables, b.leases)
	}
	if b.token != nil { // before what is hot: who comes second with a token waits here, and holds nothing
		tables = append(tables, b.token)
	}
	if b.claims != nil { // before what many share: who waits for a claim keeps nobody waiting
		tables = append(tables, b.claims)
	}
	if b.records != nil {
		tables = append(tables, b.records)
	}
	if b.inbox != nil {
		tables = append(tables, b.inbox)
	}
	if b.webhooks != nil {
		tables = append(tables, b.webhooks)
	}
	if b.template != nil {
		tables = append(tables, b.template)
	}
	if b.codes != nil { // before what limits count: who guesses at a code keeps nobody waiting
		tables = append(tables, b.codes)
	}
	if b.messages != nil { // fingerprints and counters of limits
		tables = append(tables, b.messages)
	}
	if b.ledger != nil { // what is hot comes last, and is held shortest
		tables = append(tables, b.ledger)
	}
	return tables
}

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
	newBooks := func() *Books { return &Books{outbox: outbox} }
	return commit.New(commit.Config[*Books]{
		Pool: pool, NewBooks: newBooks, Instance: instance, Metrics: metrics, Log: log,
		NameConstraints: slices.Concat(lease.NameConstraints(), claim.NameConstraints(), record.NameConstraints(), inbox.NameConstraints(),
			webhook.NameConstraints(), ledger.NameConstraints(), template.NameConstraints(), code.NameConstraints(), notify.NameConstraints()),
	})
}

// Lease makes a command on locks one over Books.
func Lease(c commit.Command[*lease.Book]) Command { return on((*Books).Leases, c) }

// Ledger makes a ledger command one over Books.
func Ledger(c commit.Command[*ledger.Book]) Command { return on((*Books).Ledger, c) }

// Token makes a command over submit tokens one over Books.
func Token(c commit.Command[*token.Book]) Command { return on((*Books).Tokens, c) }

// Claim makes a command over claims one over Books.
func Claim(c commit.Command[*claim.Book]) Command { return on((*Books).Claims, c) }

// Record makes a command on work done elsewhere one over Books.
func Record(c commit.Command[*record.Book]) Command { return on((*Books).Records, c) }

// Inbox makes an inbox command one over Books.
func Inbox(c commit.Command[*inbox.Book]) Command { return on((*Books).Inbox, c) }

// Webhook makes a command over webhook endpoints one over Books.
func Webhook(c commit.Command[*webhook.Book]) Command { return on((*Books).Webhooks, c) }

// Template makes a command on templates one over Books.
func Template(c commit.Command[*template.Book]) Command { return on((*Books).Templates, c) }

// Notify makes a command over messages one over Books.
func Notify(c commit.Command[*notify.Book]) Command { return on((*Books).Messages, c) }

// on makes a command over a domain's book one over Books.
func on[T any](book func(*Books) *T, c commit.Command[*T]) Command {
	o := onBook[T]{book, c}
	switch c := c.(type) {
	case commit.Guarded[*T]:
		return guardedOnBook[T]{o, c}
	case commit.Counted[*T]:
		return countedOnBook[T]{o, c}
	}
	return o
}

type onBook[T any] struct {
	book    func(*Books) *T
	command commit.Command[*T]
}

func (o onBook[T]) Need(b *Books)               { o.command.Need(o.book(b)) }
func (o onBook[T]) Apply(b *Books) (any, error) { return o.command.Apply(o.book(b)) }

type guardedOnBook[T any] struct {
	onBook[T]
	guarded commit.Guarded[*T]
}

func (g guardedOnBook[T]) Guard(b *Books) error { return g.guarded.Guard(g.book(b)) }

// Refused is the command's own, if it has something to say.
func (g guardedOnBook[T]) Refused(f *fault.Fault) {
	if t, ok := g.guarded.(Telling); ok {
		t.Refused(f)
	}
}

type countedOnBook[T any] struct {
	onBook[T]
	counted commit.Counted[*T]
}

func (c countedOnBook[T]) Count(b *Books) bool { return c.counted.Count(c.book(b)) }
