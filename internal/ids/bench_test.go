package ids_test

import (
	"testing"

	"github.com/ledgerd/ledgerd/internal/ids"
)

// A worker has at most 4,096,000 ids a second, 244 ns each, however fast they are generated.
func BenchmarkNext(b *testing.B) {
	g := newBench(b).generator(ids.Options{})
	for b.Loop() {
		if _, err := g.Next(b.Context(), 1); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkNextFromManyGoroutines(b *testing.B) {
	g := newBench(b).generator(ids.Options{})
	b.RunParallel(func(p *testing.PB) {
		for p.Next() {
			if _, err := g.Next(b.Context(), 1); err != nil {
				b.Fatal(err)
			}
		}
	})
}

func BenchmarkNext1000(b *testing.B) {
	g := newBench(b).generator(ids.Options{})
	for b.Loop() {
		if _, err := g.Next(b.Context(), 1000); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(float64(b.N)*1000/b.Elapsed().Seconds(), "ids/s")
}

// BenchmarkNextUnbounded measures generation with a clock that advances by one id's time span per call, so that
// no call waits.
func BenchmarkNextUnbounded(b *testing.B) {
	var h hands
	g := newBench(b).generator(h.options())
	for b.Loop() {
		h.turn(250) // the time span of one id
		if _, err := g.Next(b.Context(), 1); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkUUIDs1000(b *testing.B) {
	g := newBench(b).generator(ids.Options{})
	for b.Loop() {
		g.UUIDs(1000)
	}
	b.ReportMetric(float64(b.N)*1000/b.Elapsed().Seconds(), "ids/s")
}

func BenchmarkOrderNumber(b *testing.B) {
	form, err := ids.NewOrderForm("ORD", "Asia/Shanghai")
	if err != nil {
		b.Fatal(err)
	}
	for b.Loop() {
		_ = form.Write(at(noon, 1, 2))
	}
}

func BenchmarkParse(b *testing.B) {
	text := at(noon, 1, 2).Text()
	for b.Loop() {
		if _, err := ids.Parse(text); err != nil {
			b.Fatal(err)
		}
	}
}
