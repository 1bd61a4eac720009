package bench

import (
	"context"
	"fmt"
	"slices"
	"time"
)

// MoveResult is the CPU time of Postgres for a move of a machine's instance, in µs.
type MoveResult struct {
	Moves int // in a statement
	// Without the trigger that checks moves, and what the trigger adds: medians of all turns, and of their pairs.
	Without, Trigger float64
}

// turnsPerRound is the number of turns with and without the trigger in a round.
const turnsPerRound = 7

// measureMoves moves instances over one connection, by turns with and without the trigger.
func (c *cluster) measureMoves(ctx context.Context) (all []MoveResult, err error) {
	d, err := c.create(ctx, "moves", 1)
	if err != nil {
		return nil, err
	}
	defer d.close()
	if _, err := d.conn.PgConn().Exec(ctx, sql("moves_fill")).ReadAll(); err != nil {
		return nil, err
	}
	for _, moves := range []int{1, 10, 100, 1000} {
		r, err := d.moves(ctx, moves)
		if err != nil {
			return nil, err
		}
		c.progress("%d moves in a statement: %.2f µs a move, the trigger %.2f", moves, r.Without, r.Trigger)
		all = append(all, r)
	}
	return all, nil
}

func (d *database) moves(ctx context.Context, moves int) (MoveResult, error) {
	var without, trigger []float64
	for range d.options.Rounds * turnsPerRound {
		var turn [2]float64
		for i, do := range []string{"disable", "enable"} {
			var err error
			if turn[i], err = d.moveTurn(ctx, do, moves); err != nil {
				return MoveResult{}, err
			}
		}
		without, trigger = append(without, turn[0]), append(trigger, turn[1]-turn[0])
		if _, err := d.conn.Exec(ctx, "vacuum machine_instances"); err != nil {
			return MoveResult{}, err
		}
	}
	slices.Sort(without)
	slices.Sort(trigger)
	return MoveResult{Moves: moves, Without: without[len(without)/2], Trigger: trigger[len(trigger)/2]}, nil
}

// moveTurn returns the time of a move, with the trigger enabled or disabled.
func (d *database) moveTurn(ctx context.Context, do string, moves int) (us float64, err error) {
	if _, err := d.conn.Exec(ctx, "alter table machine_instances "+do+" trigger machine_instances_moved"); err != nil {
		return 0, err
	}
	const warmup = 10 // Postgres plans the first five of each statement of the trigger anew
	pid, begin := int(d.conn.PgConn().PID()), time.Duration(0)
	statements := min(max(3000/moves, 5), 300)
	for n := range warmup + statements {
		if n == warmup {
			begin = runtimeOf(pid)
		}
		tag, err := d.conn.Exec(ctx, sql("moves"), moves)
		if err == nil && tag.RowsAffected() != int64(moves) {
			err = fmt.Errorf("%d of %d instances moved", tag.RowsAffected(), moves)
		}
		if err != nil {
			return 0, err
		}
	}
	return float64((runtimeOf(pid) - begin).Nanoseconds()) / 1000 / float64(statements*moves), nil
}
