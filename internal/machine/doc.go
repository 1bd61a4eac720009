// Package machine implements state machines as data: machines with states, allowed moves and timers, and instances,
// each in one state. It owns the tables machine_*.
//
// Guarantees: an instance changes its state only by a move that its version of the machine allows, one revision at a
// time. Of concurrent moves from one revision exactly one succeeds; those that asked for the same state with the same
// cause get its result as a repeat. Versions never change, and an instance stays on its own. Each move is recorded with
// its caller, cause and time. An instance past its timer counts as moved by it, for every command and read, however
// late the scheduler records that. The database refuses illegal moves too.
package machine
