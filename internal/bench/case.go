package bench

import (
	"fmt"
	"path"
	"slices"

	"github.com/ledgerd/ledgerd/internal/bench/load"
)

// Case is one measured workload.
type Case struct {
	// Name is a letter, the number of callers, and perhaps -hot. Other benchmarks than the ledger's use words.
	Name string
	// What is the description of the case.
	What    string
	Kind    load.Kind
	Callers int
	// Items is the number of transfers per call; 0: Transfer.
	Items int
	// Keys: send request keys. Gather: the client batches calls. Hot: all transfers pay into one account. Guarded: the
	// baseline with the trigger. Everywhere: use all accounts, not the active ones. Obey: wait as RetryInfo says.
	// Open: without row-level security.
	Keys, Gather, Hot, Guarded, Everywhere, Obey, Open bool
	// Strategy of sales, and segments of their items. Confirm: Reserve and Confirm instead of Deduct.
	Strategy string `json:",omitempty"`
	Segments int    `json:",omitempty"`
	Confirm  bool   `json:",omitempty"`
	// Beside is the number of callers of a second, small tenant. Refusals of the large tenant are then expected.
	Beside int
}

func named(letter, what string, callers int, c Case) Case {
	c.Name, c.What, c.Callers = fmt.Sprintf("%s-%d", letter, callers), what, callers
	return c
}

// cases are the cases for both sets of tables, with request keys for the given numbers of callers.
func cases(keyed ...int) []Case {
	var all []Case
	both := func(c Case) {
		all = append(all, c)
		c.Name, c.Hot = c.Name+"-hot", true
		all = append(all, c)
	}
	for _, callers := range []int{16, 32} {
		both(named("a", "PL/pgSQL call", callers, Case{Kind: load.Baseline}))
	}
	for _, callers := range []int{1, 64, 256, 1024} {
		both(named("b", "Transfer", callers, Case{Kind: load.HTTP}))
	}
	for _, callers := range keyed {
		both(named("c", "Transfer with request key", callers, Case{Kind: load.HTTP, Keys: true}))
	}
	both(named("d", "TransferBatch of 1,000", 8, Case{Kind: load.HTTP, Items: 1000}))
	for _, callers := range []int{256, 1024} {
		both(named("e", "Go client, gathering", callers, Case{Kind: load.Client, Gather: true}))
	}
	return all
}

func smallCases() []Case {
	return append(cases(1, 64, 256, 1024),
		named("g", "Go client, not gathering", 256, Case{Kind: load.Client}),
		named("o", "Transfer without row-level security", 256, Case{Kind: load.HTTP, Open: true}),
		named("o", "TransferBatch of 1,000 without row-level security",
			8, Case{Kind: load.HTTP, Items: 1000, Open: true}),
		named("t", "PL/pgSQL call with the Σ = 0 trigger", 32, Case{Kind: load.Baseline, Guarded: true}))
}

// bigCases omit cases that only vary the callers, so that a whole run takes less than 25 minutes.
func bigCases() []Case {
	return append(cases(256),
		named("w", "Transfer between all accounts", 256, Case{Kind: load.HTTP, Everywhere: true}))
}

// selected returns the cases that match a pattern; without patterns all.
func selected(all []Case, patterns []string) []Case {
	return slices.DeleteFunc(all, func(c Case) bool { return !fits(c.Name, patterns) })
}

// fits reports whether a name matches one of the patterns, or there are none.
func fits(name string, patterns []string) bool {
	return len(patterns) == 0 || slices.ContainsFunc(patterns, func(pattern string) bool {
		ok, _ := path.Match(pattern, name)
		return ok
	})
}

// CheckPatterns refuses patterns that match no case of the ledger's benchmark.
func CheckPatterns(patterns []string) error {
	for _, pattern := range patterns {
		if _, err := path.Match(pattern, ""); err != nil {
			return fmt.Errorf("%q: %w", pattern, err)
		}
		if len(selected(append(smallCases(), bigCases()...), []string{pattern})) == 0 {
			return fmt.Errorf("no case is called %q", pattern)
		}
	}
	return nil
}
