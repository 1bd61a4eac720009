package machine

import (
	"time"
)

// Definition is the content of one version of a machine. Its JSON is stored, and its hash identifies it.
type Definition struct {
	States []State   `json:"states"`
	Moves  []Allowed `json:"moves,omitempty"`
}

// State is one state of a machine. A state that no move leaves is terminal.
type State struct {
	Name    string `json:"name"`
	Label   string `json:"label,omitempty"` // for people
	Code    int32  `json:"code,omitempty"`  // for other systems
	Initial bool   `json:"initial,omitempty"`
	Timer   *Timer `json:"timer,omitempty"`
	Parts   Parts  `json:"order_parts,omitempty"`
}

// Parts is the effect of a state on the parts of an order that enters it.
type Parts string

const (
	// KeepParts leaves the parts as they are.
	KeepParts Parts = ""
	// ConfirmParts sells the reserved units, captures the hold, and uses the coupon.
	ConfirmParts Parts = "confirm"
	// CancelParts frees the units, the hold, the coupon, and the claim on the purchase.
	CancelParts Parts = "cancel"
)

// Timer moves an instance that stays in a state for too long.
type Timer struct {
	AfterMs int64  `json:"after_ms"`
	To      string `json:"to"`
	Reason  string `json:"reason,omitempty"`
}

// After is the time until the timer fires.
func (t *Timer) After() time.Duration { return time.Duration(t.AfterMs) * time.Millisecond }

// Allowed are moves that a machine allows, with their restrictions. All but By restrict callers, not timers.
type Allowed struct {
	From       []string `json:"from"`
	To         string   `json:"to,omitempty"`
	Back       bool     `json:"back,omitempty"`       // to the state that the instance came from, instead of To
	By         []Actor  `json:"by,omitempty"`         // empty: ByCaller
	Principals []string `json:"principals,omitempty"` // empty: all
	Require    []string `json:"require,omitempty"`    // names of inputs, or ReasonInput
	StayMs     int64    `json:"stay_ms,omitempty"`
	Publish    string   `json:"publish,omitempty"` // type of the event to webhooks; empty: none
}

// Stay is how long an instance has to be in its state before a caller may move it.
func (a *Allowed) Stay() time.Duration { return time.Duration(a.StayMs) * time.Millisecond }

// Actor is the kind of party that makes a move.
type Actor string

const (
	ByCaller Actor = "caller"
	// ByTimer is the timer of a state.
	ByTimer Actor = "timer"
	// ByFlow is a flow of ledgerd, which moves the instance together with other rows. Callers may not.
	ByFlow Actor = "flow"
)

// ReasonInput in Allowed.Require means that the move needs a reason.
const ReasonInput = "reason"

// Limits of a definition.
const (
	MaxStates     = 64
	MaxMoves      = 512 // pairs of states
	MaxPrincipals = 32
	MaxInputs     = 32
	MinTimer      = time.Second               // shorter ones would fire faster than the scheduler runs
	MaxTime       = 10 * 365 * 24 * time.Hour // of a timer, or of a stay
	maxDefinition = 768 << 10                 // bytes of JSON; as jsonb, with added spaces, at most 1 MiB
)

// compiled is a valid definition, ready for use. It never changes.
type compiled struct {
	*Definition
	text    []byte // the definition as stored
	initial *State
	states  map[string]*State
	moves   map[pair]move
}

type pair struct{ from, to string }

// move is one allowed move between two states.
type move struct {
	*Allowed
	back bool // only if the instance came from the state it enters
}

// by reports whether an actor may make the move.
func (m move) by(a Actor) bool {
	if len(m.By) == 0 {
		return a == ByCaller
	}
	for _, by := range m.By {
		if by == a {
			return true
		}
	}
	return false
}

// label is the name of a state, with its label if it has one.
func (c *compiled) label(state string) string {
	if s := c.states[state]; s != nil && s.Label != "" {
		return state + " (" + s.Label + ")"
	}
	return state
}
