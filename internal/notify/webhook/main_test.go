package webhook_test

import (
	"os"
	"testing"

	"github.com/ledgerd/ledgerd/internal/pgtest"
)

// TestMain sets an unreachable proxy in the environment: nothing here may use it.
func TestMain(m *testing.M) {
	for _, name := range []string{"HTTP_PROXY", "HTTPS_PROXY", "http_proxy", "https_proxy"} {
		if err := os.Setenv(name, "http://127.0.0.1:1"); err != nil {
			panic(err)
		}
	}
	pgtest.Main(m)
}
