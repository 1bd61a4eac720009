package servertest

import (
	"context"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
)

// Methods returns the methods of all our services.
func Methods(t testing.TB) []protoreflect.MethodDescriptor {
	t.Helper()
	var all []protoreflect.MethodDescriptor
	protoregistry.GlobalFiles.RangeFiles(func(f protoreflect.FileDescriptor) bool {
		for i := range f.Services().Len() {
			if s := f.Services().Get(i); strings.HasPrefix(string(s.FullName()), "ledgerd.") {
				for j := range s.Methods().Len() {
					all = append(all, s.Methods().Get(j))
				}
			}
		}
		return true
	})
	if len(all) < 24 {
		t.Fatalf("only %d methods were found", len(all))
	}
	return all
}

// CallName returns the short name of a call in tests: Transfer for the ledger, Batch.Execute for other services.
func CallName(m protoreflect.MethodDescriptor) string {
	service := strings.TrimSuffix(string(m.Parent().Name()), "Service")
	if service == "Ledger" {
		return string(m.Name())
	}
	return service + "." + string(m.Name())
}

// Method returns a method by its short name.
func Method(t testing.TB, name string) protoreflect.MethodDescriptor {
	t.Helper()
	for _, m := range Methods(t) {
		if CallName(m) == name {
			return m
		}
	}
	t.Fatalf("there is no method %s", name)
	return nil
}

// Eventually polls until a condition holds.
func Eventually(t testing.TB, limit time.Duration, what string, is func() bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for !is() {
		select {
		case <-ctx.Done():
			t.Fatalf("not within %v: %s", limit, what)
		case <-tick.C:
		}
	}
}
