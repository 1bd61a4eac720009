package claim

import "time"

// Rule says what counts as the same thing: two uses with equal parts within a window. The window is measured from
// the first use, repeats do not extend it, and there is no edge of the clock between two uses.
type Rule struct {
	Name   string        // the scope of its keys
	Window time.Duration // 0: for ever
	// Refuse makes a repeat the fault KEY_CLAIMED. Else it is told of the first one.
	Refuse bool
}

// SamePurchase is the rule for orders that mean the same purchase: user and product, within 5 minutes.
var SamePurchase = Rule{Name: PurchaseScope, Window: 5 * time.Minute}

// Params is a use of the rule's key of these parts, for Want, Use and Name.
func (r Rule) Params(parts ...string) Params {
	return Params{Scope: r.Name, Key: Compose(parts), Parts: parts, Life: r.Window, FirstOnly: r.Refuse}
}
