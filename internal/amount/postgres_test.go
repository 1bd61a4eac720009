package amount

import (
	"context"
	"errors"
	"os"
	"reflect"
	"slices"
	"testing"

	"github.com/jackc/pgx/v5"
)

// connect opens a registered connection that speaks to the server in mode.
func connect(t *testing.T, mode pgx.QueryExecMode) *pgx.Conn {
	t.Helper()
	dsn := os.Getenv("LEDGERD_TEST_DSN")
	if dsn == "" {
		t.Skip("LEDGERD_TEST_DSN is not set: the codec was not tried against a real Postgres")
	}
	config, err := pgx.ParseConfig(dsn)
	if err != nil {
		t.Fatal(err)
	}
	config.DefaultQueryExecMode = mode
	conn, err := pgx.ConnectConfig(context.Background(), config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := conn.Close(context.Background()); err != nil {
			t.Error(err)
		}
	})
	Register(conn.TypeMap())
	return conn
}

// samples has one value for every count of base 10000 digits, with and without trailing zeros, of both signs.
func samples() []Int {
	xs := []Int{{}, Max, Min}
	for d, n := uint64(1), uint64(1); d < 1e19; d, n = d*10, n*10+d%9 {
		for _, x := range []Int{{lo: d}, {lo: n}, {hi: int64(d / 4), lo: n}, {hi: int64(n / 4)}} {
			if x.inBounds() {
				xs = append(xs, x, x.Neg())
			}
		}
	}
	return xs
}

var modes = map[string]pgx.QueryExecMode{
	"prepared": pgx.QueryExecModeCacheStatement,
	"describe": pgx.QueryExecModeCacheDescribe,
	"exec":     pgx.QueryExecModeExec,
	"simple":   pgx.QueryExecModeSimpleProtocol,
}

func TestPostgresStoresEveryInt(t *testing.T) {
	for name, mode := range modes {
		t.Run(name, func(t *testing.T) {
			ctx, conn, xs := context.Background(), connect(t, mode), samples()
			var got []Int
			var texts []string
			err := conn.QueryRow(ctx,
				`select array_agg(x order by i), array_agg(x::text order by i)
				 from unnest($1::numeric(38,0)[]) with ordinality as u(x, i)`, xs).Scan(&got, &texts)
			if err != nil {
				t.Fatal(err)
			}
			if !slices.Equal(got, xs) {
				t.Errorf("sent %v\ngot  %v", xs, got)
			}
			for i, x := range xs {
				if texts[i] != x.String() {
					t.Errorf("the server reads %v as %s", x, texts[i])
				}
			}
			for _, x := range []Int{{}, Max, Min, FromInt64(-10_000)} {
				var back Int
				var text string
				err := conn.QueryRow(ctx, `select $1::numeric(38,0), $2::numeric::text`, x, &x).Scan(&back, &text)
				if err != nil || back != x || text != x.String() {
					t.Errorf("%v came back as %v %s, %v", x, back, text, err)
				}
			}
		})
	}
}

func TestPostgresKeepsNull(t *testing.T) {
	for name, mode := range modes {
		t.Run(name, func(t *testing.T) {
			ctx, conn := context.Background(), connect(t, mode)
			one := FromInt64(1)
			want := []*Int{nil, &one, nil}
			var got []*Int
			var none, some *Int
			var missing, empty []Int
			err := conn.QueryRow(ctx,
				`select $1::numeric[], $2::numeric, $3::numeric, $4::numeric[], $5::numeric[]`,
				want, (*Int)(nil), &one, []Int(nil), []Int{}).Scan(&got, &none, &some, &missing, &empty)
			if err != nil {
				t.Fatal(err)
			}
			if !reflect.DeepEqual(got, want) || none != nil || some == nil || *some != one {
				t.Errorf("got %v %v %v", got, none, some)
			}
			if missing != nil || empty == nil || len(empty) != 0 {
				t.Errorf("got %#v for NULL and %#v for {}", missing, empty)
			}
		})
	}
}

func TestPostgresSendsTheBytesWeSend(t *testing.T) {
	ctx, conn := context.Background(), connect(t, pgx.QueryExecModeCacheStatement)
	for _, x := range samples() {
		var sent []byte
		if err := conn.QueryRow(ctx, `select numeric_send($1::text::numeric)`, x.String()).Scan(&sent); err != nil {
			t.Fatal(err)
		}
		if got := AppendNumeric(nil, x); !slices.Equal(got, sent) {
			t.Errorf("%v: % x, Postgres % x", x, got, sent)
		}
	}
}

func TestPostgresCopiesInts(t *testing.T) {
	ctx, conn := context.Background(), connect(t, pgx.QueryExecModeCacheStatement)
	if _, err := conn.Exec(ctx, `create temporary table copied (x numeric(38,0), xs numeric[])`); err != nil {
		t.Fatal(err)
	}
	rows := [][]any{{Max, []Int{Min, {}}}, {(*Int)(nil), []*Int{nil}}}
	if _, err := conn.CopyFrom(ctx, pgx.Identifier{"copied"}, []string{"x", "xs"}, pgx.CopyFromRows(rows)); err != nil {
		t.Fatal(err)
	}
	var text string
	err := conn.QueryRow(ctx,
		`select string_agg(concat_ws(' ', coalesce(x::text, 'null'), xs::text), '; ' order by x)
		 from copied`).Scan(&text)
	want := Max.String() + " {" + Min.String() + ",0}; null {NULL}"
	if err != nil || text != want {
		t.Errorf("stored %q, %v; want %q", text, err, want)
	}
}

func TestPostgresNonIntegerNumericIsRefused(t *testing.T) {
	for name, mode := range modes {
		t.Run(name, func(t *testing.T) {
			ctx, conn := context.Background(), connect(t, mode)
			for text, want := range map[string]error{
				"'NaN'":          ErrNotInteger,
				"'Infinity'":     ErrNotInteger,
				"'-Infinity'":    ErrNotInteger,
				"'1.5'":          ErrNotInteger,
				"'0.00001'":      ErrNotInteger,
				"'12.00'":        nil,
				"repeat('9',39)": ErrOverflow,
			} {
				var x Int
				err := conn.QueryRow(ctx, `select (`+text+`)::numeric`).Scan(&x)
				if !errors.Is(err, want) || want == nil && x != FromInt64(12) {
					t.Errorf("%s = %v, %v; want %v", text, x, err, want)
				}
			}
			var x Int
			if err := conn.QueryRow(ctx, `select null::numeric`).Scan(&x); err == nil {
				t.Error("NULL was scanned into an Int")
			}
		})
	}
}
