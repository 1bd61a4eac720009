package claim

import "time"

// Rule defines when two uses are duplicates: equal parts within a life. It starts with the first use, and repeats do
// not extend it.
type Rule struct {
	Name string        // the scope of its keys
	Life time.Duration // 0: forever
	// Refuse makes a repeat fail with KEY_CLAIMED. Otherwise a repeat learns the first use.
	Refuse bool
}

// SamePurchase treats orders of one user for one product within 5 minutes as the same purchase.
var SamePurchase = Rule{Name: PurchaseScope, Life: 5 * time.Minute}

// Params is a use of the rule's key for these parts, for Want, Use and Name.
func (r Rule) Params(parts ...string) Params {
	return Params{Scope: r.Name, Key: Compose(parts), Parts: parts, Life: r.Life, FirstOnly: r.Refuse}
}
