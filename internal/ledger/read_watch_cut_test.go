package ledger

import (
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// TestNothingBehindACutIsEarlier generates batches with consecutive transaction ids and times up to a minute
// later, of which the reader has seen the first few.
func TestNothingBehindACutIsEarlier(t *testing.T) {
	cuts := 0
	rapid.Check(t, func(t *rapid.T) {
		begin := time.Unix(0, 0)
		all := rapid.SliceOfN(rapid.Custom(func(t *rapid.T) watchedBatch {
			begin = begin.Add(time.Duration(rapid.IntRange(0, 30).Draw(t, "begins")) * time.Second)
			wait := rapid.SampledFrom([]int{0, 0, 0, 1, 20, 60}).Draw(t, "waits")
			return watchedBatch{at: begin.Add(time.Duration(wait) * time.Second), final: true}
		}), 1, 30).Draw(t, "batches")
		seen := rapid.IntRange(1, len(all)).Draw(t, "seen")
		running := rapid.IntRange(0, seen).Draw(t, "running")
		for i := range running {
			all[seen-1-i].final = false
		}
		end := markCuts(all[:seen], seen < len(all))
		for i := range all[:seen] {
			if !all[i].cut {
				continue
			}
			cuts++
			if i >= end || !all[i].final {
				t.Fatalf("cut at %d, end %d", i, end)
			}
			latest := slices.MaxFunc(all[:i+1], byTime).at
			for _, behind := range all[i+1:] {
				if !latest.Before(behind.at) {
					t.Fatalf("cut at %d: latest time before %s, a time after %s", i, latest, behind.at)
				}
			}
		}
		if end > 0 && !all[end-1].cut {
			t.Fatalf("the end %d is not a cut", end)
		}
	})
	if cuts == 0 {
		t.Error("there was no cut at all")
	}
}

func byTime(x, y watchedBatch) int { return x.at.Compare(y.at) }

func TestSequentialBatchesAreGroupsOfTheirOwn(t *testing.T) {
	batches := make([]watchedBatch, 5)
	for i := range batches {
		batches[i] = watchedBatch{at: time.Unix(int64(i), 0), final: i < 4}
	}
	if end := markCuts(batches, false); end != 4 || !batches[0].cut || !batches[3].cut || batches[4].cut {
		t.Errorf("end %d of %+v", end, batches)
	}
}

// TestAnEpochEndsWithACut has a clock that goes back in the second epoch.
func TestAnEpochEndsWithACut(t *testing.T) {
	var batches []watchedBatch
	for _, b := range []struct{ epoch, at int }{{1, 100}, {1, 101}, {2, 50}, {2, 51}} {
		batches = append(batches, watchedBatch{position: position{epoch: int32(b.epoch)}, at: time.Unix(int64(b.at), 0),
			final: true})
	}
	if end := markCuts(batches, false); end != 4 || !batches[0].cut || !batches[1].cut || !batches[2].cut {
		t.Errorf("end %d of %+v", end, batches)
	}
	batches[2].final = false
	if end := markCuts(batches, true); end != 2 {
		t.Errorf("the end is %d while a transaction of the second epoch runs", end)
	}
}
