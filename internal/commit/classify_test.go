package commit

import (
	"errors"
	"fmt"
	"testing"

	"github.com/jackc/pgx/v5/pgconn"
)

func TestWhatAPoolerSaysIsNobodysData(t *testing.T) {
	t.Parallel()
	e := &Engine[*toyBook]{}
	said := &pgconn.PgError{Code: "P0001", Message: "no such user"}
	for _, c := range []struct {
		err  error
		want action
	}{
		{fmt.Errorf("%w: %w", errLost, said), lost},
		{said, data},
		{fmt.Errorf("%w: %w", errLost, &pgconn.PgError{Code: "28P01"}), broken},
		{fmt.Errorf("%w: %w", errLost, errors.New("refused")), lost},
	} {
		if a := e.classify(c.err); a != c.want {
			t.Errorf("%v: %d, want %d", c.err, a, c.want)
		}
	}
}
