// Package flow is where the domains come together: the books of one batch, in the one order in which
// their tables are locked, and the business operations that span several of them.
package flow

import (
	"log/slog"
	"slices"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/ledgerd/ledgerd/internal/commit"
	"github.com/ledgerd/ledgerd/internal/ledger"
)

// Books are the tables that one batch works on.
type Books struct {
	Ledger *ledger.Book
}

// NewBooks makes empty books.
func NewBooks() *Books { return &Books{Ledger: ledger.NewBook()} }

// Tables is the lock order: every batch locks the domains in it, and each domain's rows sorted.
func (b *Books) Tables() []commit.Table { return []commit.Table{b.Ledger} }

// Engine runs commands over Books.
type Engine = commit.Engine[*Books]

// Work is a command on its way to the Engine.
type Work = commit.Work[*Books]

// NewEngine starts an engine over all domains.
func NewEngine(pool *pgxpool.Pool, instance string, metrics *commit.Metrics, log *slog.Logger) *Engine {
	return commit.New(commit.Config[*Books]{
		Pool: pool, NewBooks: NewBooks, Instance: instance, Metrics: metrics, Log: log,
		NameConstraints: slices.Concat(ledger.NameConstraints()),
	})
}

// Ledger makes a ledger command one over Books.
func Ledger(c commit.Command[*ledger.Book]) commit.Command[*Books] {
	if g, ok := c.(commit.Guarded[*ledger.Book]); ok {
		return guardedOnLedger{onLedger{c}, g}
	}
	return onLedger{c}
}

type onLedger struct{ command commit.Command[*ledger.Book] }

func (o onLedger) Need(b *Books)               { o.command.Need(b.Ledger) }
func (o onLedger) Apply(b *Books) (any, error) { return o.command.Apply(b.Ledger) }

type guardedOnLedger struct {
	onLedger
	guarded commit.Guarded[*ledger.Book]
}

func (g guardedOnLedger) Guard(b *Books) error { return g.guarded.Guard(b.Ledger) }
