package machine_test

import (
	"os"
	"regexp"
	"testing"

	"github.com/ledgerd/ledgerd/internal/machine"
)

var picture = regexp.MustCompile("(?s)```mermaid\n(.*?)```")

func TestTheGuideOfOrdersShowsTheShippedMachines(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile("../../docs/orders.md")
	if err != nil {
		t.Fatal(err)
	}
	shown := picture.FindAllStringSubmatch(string(page), -1)
	shipped := []string{machine.OrderMachine, machine.SimpleOrderMachine}
	if len(shown) != len(shipped) {
		t.Fatalf("%d pictures", len(shown))
	}
	for n, name := range shipped {
		if want := machine.Diagram(machine.Shipped[name]); shown[n][1] != want {
			t.Errorf("the picture of %s is not\n%s", name, want)
		}
	}
}
