package ids_test

import (
	"os"
	"testing"

	"github.com/ledgerd/ledgerd/internal/pgtest"
)

func TestMain(m *testing.M) {
	if os.Getenv(childDSN) != "" {
		child()
		return
	}
	pgtest.Main(m)
}
