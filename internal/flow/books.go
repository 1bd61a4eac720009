// Package flow is where the domains come together: the books of one batch, in the one order in which
// their tables are locked, and the business operations that span several of them.
package flow

import (
	"log/slog"
	"slices"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/ledgerd/ledgerd/internal/commit"
	"github.com/ledgerd/ledgerd/internal/inbox"
	"github.com/ledgerd/ledgerd/internal/ledger"
)

// Books are the domains' books that one batch works on. A book is made when Need first asks for it: what
// no command of a batch needs costs the batch nothing.
type Books struct {
	ledger *ledger.Book
	inbox  *inbox.Book
	loaded bool
}

// NewBooks makes empty books.
func NewBooks() *Books { return &Books{} }

// Ledger has accounts, transfers and holds.
func (b *Books) Ledger() *ledger.Book { return open(b, &b.ledger, ledger.NewBook) }

// Inbox has the messages of consumers.
func (b *Books) Inbox() *inbox.Book { return open(b, &b.inbox, inbox.NewBook) }

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
	if b.ledger != nil {
		tables = append(tables, b.ledger)
	}
	if b.inbox != nil {
		tables = append(tables, b.inbox)
	}
	return tables
}

// Engine runs commands over Books.
type Engine = commit.Engine[*Books]

// Work is a command on its way to the Engine.
type Work = commit.Work[*Books]

// Command is a command over Books.
type Command = commit.Command[*Books]

// NewEngine starts an engine over all domains.
func NewEngine(pool *pgxpool.Pool, instance string, metrics *commit.Metrics, log *slog.Logger) *Engine {
	return commit.New(commit.Config[*Books]{
		Pool: pool, NewBooks: NewBooks, Instance: instance, Metrics: metrics, Log: log,
		NameConstraints: slices.Concat(ledger.NameConstraints(), inbox.NameConstraints()),
	})
}

// Ledger makes a ledger command one over Books.
func Ledger(c commit.Command[*ledger.Book]) Command { return on((*Books).Ledger, c) }

// Inbox makes an inbox command one over Books.
func Inbox(c commit.Command[*inbox.Book]) Command { return on((*Books).Inbox, c) }

// on makes a command over a domain's book one over Books.
func on[T any](book func(*Books) *T, c commit.Command[*T]) Command {
	o := onBook[T]{book, c}
	if g, ok := c.(commit.Guarded[*T]); ok {
		return guardedOnBook[T]{o, g}
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
