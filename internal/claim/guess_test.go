package claim_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/ledgerd/ledgerd/internal/claim"
	"github.com/ledgerd/ledgerd/internal/flow"
)

// before claims a key by the other server, of which this one does not know. over: its life is over, too.
func (d *desk) before(key string, over bool) {
	d.Helper()
	if _, err := d.engines[1].Do(context.Background(), work(flow.Claim(use(by("another"), key, time.Hour, owner("another"))))); err != nil {
		d.Fatal(err)
	}
	if over {
		d.age(2 * time.Hour)
	}
}

func TestAClaimThatIsTakenForNewAndIsNotIsFound(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		command func() flow.Command
		over    bool
		want    string
	}{
		"used":           {func() flow.Command { return flow.Claim(use(caller, "k", time.Hour)) }, false, "2 existed"},
		"first only":     {func() flow.Command { return flow.Claim(use(caller, "k", time.Hour, firstOnly)) }, false, "KEY_CLAIMED"},
		"for ever":       {func() flow.Command { return flow.Claim(use(caller, "k", 0)) }, false, "CLAIM_LIFE_DIFFERENT"},
		"over":           {func() flow.Command { return flow.Claim(use(caller, "k", time.Hour)) }, true, "1"},
		"another's":      {free("k", "me"), false, "CLAIM_FOREIGN"},
		"freed":          {free("k", "another"), false, "true"},
		"freed too late": {free("k", "another"), true, "false"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d := newDesk(t)
			d.before("k", c.over)
			start := time.Now()
			d.want(ended(d.all(c.command())[0]), c.want)
			if n := d.count("ledgerd_commit_wrong_guesses_total"); n != 1 {
				t.Errorf("%v wrong guesses", n)
			}
			// For a while nobody guesses; nor is what was found forgotten.
			d.before("other", false)
			d.want(d.use(use(caller, "other", time.Hour)), "2 existed")
			if n := d.count("ledgerd_commit_wrong_guesses_total"); n != 1 && time.Since(start) < time.Second {
				t.Errorf("%v wrong guesses, though it was to be careful", n)
			}
		})
	}
}

func free(key, owner string) func() flow.Command {
	return func() flow.Command { return drop(key, claim.DropParams{Owner: owner}) }
}

// What the process made or saw it does not guess about.
func TestKnownClaimsAreLookedFor(t *testing.T) {
	t.Parallel()
	d := newDesk(t)
	for i := range 300 {
		key := fmt.Sprint("k", i)
		d.want(d.use(use(caller, key, time.Hour)), "1")
		d.want(d.use(use(caller, key, time.Hour)), "2 existed")
		d.want(ended(d.all(free(key, "")())[0]), "CLAIM_FOREIGN")
	}
	if n := d.count("ledgerd_commit_wrong_guesses_total"); n != 0 {
		t.Errorf("%v wrong guesses", n)
	}
}
