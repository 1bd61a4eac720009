package bench

import (
	"fmt"
	"path"

	"github.com/ledgerd/ledgerd/internal/bench/load"
)

// Case is one thing that is measured.
type Case struct {
	// Name is the letter, the callers, and -hot.
	Name string
	// What it is, for people.
	What    string
	Kind    load.Kind
	Callers int
	// Items is how many transfers a call carries; 0: Transfer.
	Items int
	// Keys: with request keys. Gather: the client gathers. Hot: all pay into one account.
	// Guarded: the baseline with the trigger. Everywhere: between all accounts, not the active ones.
	Keys, Gather, Hot, Guarded, Everywhere bool
}

func named(letter, what string, callers int, c Case) Case {
	c.Name, c.What, c.Callers = fmt.Sprintf("%s-%d", letter, callers), what, callers
	return c
}

// cases are those both sets of tables have, with request keys at the numbers of callers given.
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
		named("t", "PL/pgSQL call with the Σ = 0 trigger", 32, Case{Kind: load.Baseline, Guarded: true}))
}

// bigCases leave out what only tells of the callers, so that a whole run takes less than 25 minutes.
func bigCases() []Case {
	return append(cases(256),
		named("w", "Transfer between all accounts", 256, Case{Kind: load.HTTP, Everywhere: true}))
}

// selected are the cases that a pattern fits; without patterns all.
func selected(all []Case, patterns []string) []Case {
	if len(patterns) == 0 {
		return all
	}
	var some []Case
	for _, c := range all {
		for _, pattern := range patterns {
			if ok, _ := path.Match(pattern, c.Name); ok { // CheckPatterns was asked
				some = append(some, c)
				break
			}
		}
	}
	return some
}

// CheckPatterns refuses patterns that fit no case.
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
