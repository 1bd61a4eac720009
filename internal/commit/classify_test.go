package commit

import (
	"errors"
	"fmt"
	"testing"

	"github.com/jackc/pgx/v5/pgconn"
)

func TestClassify(t *testing.T) {
	t.Parallel()
	e := &Engine[*toyTx]{}
	said := &pgconn.PgError{Code: "P0001", Message: "no such user"}
	for _, c := range []struct {
		err  error
		want ending
	}{
		{fmt.Errorf("%w: %w", errLost, said), lost},
		{said, rejected},
		{fmt.Errorf("%w: %w", errLost, &pgconn.PgError{Code: "28P01"}), broken},
		{fmt.Errorf("%w: %w", errLost, errors.New("refused")), lost},
		{&pgconn.PgError{Code: "42P05"}, raced},    // a pooler has the statement of another client
		{&pgconn.PgError{Code: "XX001"}, rejected}, // a corrupt row
		{&pgconn.PgError{Code: "LD003"}, rejected}, // an unbalanced transfer
		{&pgconn.PgError{Code: "LD004"}, rejected}, // a move that a machine does not allow
	} {
		if a := e.classify(c.err); a != c.want {
			t.Errorf("%v: %v, want %v", c.err, a, c.want)
		}
	}
}
