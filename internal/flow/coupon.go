package flow

import (
	"fmt"
	"time"

	"github.com/ledgerd/ledgerd/internal/claim"
	"github.com/ledgerd/ledgerd/internal/commit"
	"github.com/ledgerd/ledgerd/internal/coupon"
	"github.com/ledgerd/ledgerd/internal/fault"
	"github.com/ledgerd/ledgerd/internal/machine"
	"github.com/ledgerd/ledgerd/internal/order"
)

// causeClaim is the cause of the move that gives a coupon to its owner.
const causeClaim = "claim"

// couponInstance is the key of the instance that has a coupon's state.
func couponInstance(k coupon.Key) machine.Key {
	return machine.Key{Tenant: k.Tenant, Machine: machine.CouponMachine, Key: k.Code}
}

// campaignClaim is the claim of an owner on the one coupon of a campaign. Its result is the code.
func campaignClaim(campaign, owner, code string) claim.Params {
	return claim.Params{Scope: claim.CampaignScope, Key: claim.Compose([]string{campaign, owner}),
		Parts: []string{campaign, owner}, Owner: owner, Result: code}
}

// needCoupon names a coupon and its instance.
func (tx *Tx) needCoupon(tenant int32, code string) *coupon.Row {
	k := coupon.Key{Tenant: tenant, Code: code}
	tx.Machines().Want(couponInstance(k))
	return tx.Coupons().Want(k)
}

// couponState returns a named coupon with its instance as it is now: expired, if its life is over. Returns fault
// COUPON_NOT_FOUND.
func (tx *Tx) couponState(row *coupon.Row, c commit.Caller) (*coupon.Coupon, machine.Instance, error) {
	x, err := coupon.MustExist(row)
	if err != nil {
		return nil, machine.Instance{}, err
	}
	k := couponInstance(row.Key)
	if r := tx.Machines().Wanted(k); !r.Exists {
		// Another server has issued it since this batch has read its instances: another attempt finds both.
		return nil, machine.Instance{}, commit.ErrMoreRows
	}
	i, err := tx.Machines().StateOf(k, c)
	return x, i, err
}

// couponNow is couponState, but first cancels an order that locks the coupon and whose time to pay is over, which frees
// the coupon.
func (tx *Tx) couponNow(row *coupon.Row, lock *orderRef, e *consequences, c commit.Caller) (*coupon.Coupon,
	machine.Instance, error) {
	x, i, err := tx.couponState(row, c)
	if err != nil || i.State != machine.CouponLocked {
		return x, i, err
	}
	if _, err := lock.view(tx, e, order.Key{Tenant: row.Key.Tenant, OrderNo: i.Cause}, c); err != nil {
		return nil, i, err
	}
	return tx.couponState(row, c)
}

func couponView(c *coupon.Coupon, i machine.Instance) coupon.View {
	return coupon.View{Coupon: *c, State: coupon.State{State: i.State, Owner: i.Owner, Cause: i.Cause,
		ChangedAt: i.ChangedAt}}
}

// moveCoupon makes a move of a coupon that only flows make.
func (tx *Tx) moveCoupon(row *coupon.Row, c commit.Caller, p machine.MoveParams) (any, error) {
	k := couponInstance(row.Key)
	p.Machine, p.Key, p.Flow = k.Machine, k.Key, true
	m := &machine.MoveCommand{Caller: c, MoveParams: p}
	m.Need(tx.Machines()) // named before
	return m.Apply(tx.Machines())
}

// useCoupon locks or uses a coupon of an owner, for a cause. Returns faults COUPON_NOT_FOUND, COUPON_TAKEN,
// COUPON_UNCLAIMED, COUPON_EXPIRED, and STATE_TAKEN if an order has locked it, or another cause has used it.
func (tx *Tx) useCoupon(row *coupon.Row, lock *orderRef, e *consequences, c commit.Caller, owner, to, cause string) (
	any, error) {
	x, i, err := tx.couponNow(row, lock, e, c)
	if err != nil {
		return nil, err
	}
	switch {
	case i.Owner != "" && i.Owner != owner:
		return nil, x.IsTaken()
	case i.State == machine.CouponExpired:
		return nil, x.HasExpired()
	case i.State == machine.CouponUnclaimed:
		return nil, x.IsUnclaimed()
	case i.State == machine.CouponLocked, i.State == machine.CouponUsed && (to != i.State || i.Cause != cause):
		return nil, machine.StateTaken.New("coupon %s is %s already, because of %s", x.Code, i.State, i.Cause).
			With("code", x.Code).With("state", i.State).With("cause", i.Cause)
	}
	return tx.moveCoupon(row, c, machine.MoveParams{To: to, Cause: cause})
}

// settleCoupon ends an order's lock on its coupon: confirmed parts use the coupon, cancelled ones return it to its
// owner, or let it expire if its life is over.
func (tx *Tx) settleCoupon(row *coupon.Row, m *machine.Moved, orderNo string) error {
	x, i, err := tx.couponState(row, m.Caller)
	if err != nil || i.State != machine.CouponLocked || i.Cause != orderNo {
		return err
	}
	p := machine.MoveParams{To: machine.CouponUsed, Cause: orderNo}
	if m.Parts == machine.CancelParts {
		p.To, p.TimerAt = machine.CouponClaimed, x.ExpiresAt
	}
	_, err = tx.moveCoupon(row, m.Caller, p)
	return err
}

// maxIssued bounds the codes that an error names.
const maxIssued = 20

// IssueCoupons issues coupons of a campaign, all or none. Its answer is the codes, or a commit.Repeat of them.
type IssueCoupons struct {
	commit.Caller
	Campaign  string
	Codes     []string
	ExpiresAt time.Time // zero: after the longest life
	Metadata  map[string]string

	rows      []*coupon.Row
	instances []machine.CreateCommand
}

// Need names the coupons and their instances.
func (c *IssueCoupons) Need(tx *Tx) {
	if c.instances == nil {
		c.instances = make([]machine.CreateCommand, len(c.Codes))
	}
	c.rows = c.rows[:0]
	for n, code := range c.Codes {
		b := &c.instances[n]
		b.Caller, b.CreateParams = c.Caller, machine.CreateParams{Machine: machine.CouponMachine, Key: code}
		b.Need(tx.Machines())
		c.rows = append(c.rows, tx.Coupons().Want(coupon.Key{Tenant: c.Tenant, Code: code}))
	}
}

// Apply issues the coupons. Returns faults COUPON_EXISTS_DIFFERENT, and FIELD_INVALID for a time that is over.
func (c *IssueCoupons) Apply(tx *Tx) (any, error) {
	var issued *fault.Fault
	existed := 0
	for n, row := range c.rows {
		if !row.Exists {
			continue
		}
		if err := row.Value.CheckSame(c.Campaign, c.ExpiresAt, c.Metadata); err != nil {
			return nil, err
		}
		if existed++; issued == nil {
			issued = row.Key.IsIssued(row.Value.ID)
		}
		if existed <= maxIssued {
			issued = issued.WithField(fmt.Sprintf("codes[%d]", n), "is issued already: remove it")
		}
	}
	if existed == len(c.rows) {
		return commit.Repeat{First: c.Codes}, nil
	}
	if issued != nil {
		return nil, issued
	}
	now := tx.Machines().Now
	expires := c.ExpiresAt
	if expires.IsZero() {
		expires = coupon.LongestLife(now)
	}
	if !expires.After(now) || expires.After(now.Add(coupon.MaxLife)) {
		return nil, fault.InvalidField("expire_time", "must be in the future, and at most 10 years from now")
	}
	for n, row := range c.rows {
		if err := tx.issueCoupon(row, &c.instances[n], coupon.Coupon{Campaign: c.Campaign, ExpiresAt: expires,
			Metadata: c.Metadata}); err != nil {
			return nil, err
		}
	}
	return c.Codes, nil
}

// issueCoupon makes a coupon and its instance.
func (tx *Tx) issueCoupon(row *coupon.Row, instance *machine.CreateCommand, x coupon.Coupon) error {
	instance.TimerAt = x.ExpiresAt
	answer, err := instance.Apply(tx.Machines())
	if err != nil {
		return err
	}
	i, made := answer.(machine.Instance)
	if !made {
		return row.Key.IsIssued(answer.(commit.Repeat).First.(machine.Instance).ID)
	}
	x.ID, x.Principal, x.RequestID = i.ID, instance.Principal, instance.RequestID
	tx.Coupons().Issue(row, x)
	return nil
}

// ClaimCoupon gives a coupon to an owner, who can have one of its campaign. Its answer is a coupon.View, or a
// commit.Repeat of one.
type ClaimCoupon struct {
	commit.Caller
	Code, Owner string

	consequences
	row      *coupon.Row
	lock     orderRef // the order that locks it
	campaign string   // of the coupon, as an earlier attempt found it
}

// Need names the coupon, its instance, and the claim on its campaign.
func (c *ClaimCoupon) Need(tx *Tx) {
	c.row = tx.needCoupon(c.Tenant, c.Code)
	c.lock.need(tx)
	c.consequences.need(tx)
	claims := tx.Claims()
	if c.campaign != "" {
		p := campaignClaim(c.campaign, c.Owner, c.Code)
		claims.Want(p.At(c.Tenant))
	}
}

// Apply claims the coupon. Returns faults COUPON_NOT_FOUND, COUPON_TAKEN, COUPON_OWNED, COUPON_EXPIRED.
func (c *ClaimCoupon) Apply(tx *Tx) (any, error) {
	x, i, err := tx.couponNow(c.row, &c.lock, &c.consequences, c.Caller)
	switch {
	case err != nil:
		return nil, err
	case i.Owner == c.Owner:
		return commit.Repeat{First: couponView(x, i)}, nil
	case i.Owner != "":
		return nil, x.IsTaken()
	case i.State == machine.CouponExpired:
		return nil, x.HasExpired()
	}
	p := campaignClaim(x.Campaign, c.Owner, c.Code)
	row := tx.Claims().Wanted(p.At(c.Tenant))
	if row == nil {
		c.campaign = x.Campaign
		return nil, commit.ErrMoreRows
	}
	return tx.giveCoupon(c.row, row, c.Caller, p)
}

// giveCoupon gives a coupon without an owner to the owner of a claim on its campaign. Returns fault COUPON_OWNED.
func (tx *Tx) giveCoupon(row *coupon.Row, owned *claim.Row, c commit.Caller, p claim.Params) (any, error) {
	claims := tx.Claims()
	if claims.Live(owned) {
		return nil, row.Value.IsOwned(p.Owner, owned.Value.Result)
	}
	if _, err := claims.Use(owned, c, &p); err != nil {
		return nil, err
	}
	claims.Name(owned, p.Result)
	answer, err := tx.moveCoupon(row, c, machine.MoveParams{To: machine.CouponClaimed, Cause: causeClaim,
		Owner: p.Owner, TimerAt: row.Value.ExpiresAt, Inputs: map[string]string{"owner": p.Owner}})
	if err != nil {
		return nil, err
	}
	return couponView(&row.Value, answer.(machine.Instance)), nil
}

// RedeemCoupon uses a coupon. Its answer is a coupon.View, or a commit.Repeat of one.
type RedeemCoupon struct {
	commit.Caller
	Code, Owner, Cause string

	consequences
	row  *coupon.Row
	lock orderRef // the order that locks it
}

// Need names the coupon, its instance, and what earlier attempts found.
func (c *RedeemCoupon) Need(tx *Tx) {
	c.row = tx.needCoupon(c.Tenant, c.Code)
	c.lock.need(tx)
	c.consequences.need(tx)
}

// Apply uses the coupon. Returns the faults of useCoupon.
func (c *RedeemCoupon) Apply(tx *Tx) (any, error) {
	answer, err := tx.useCoupon(c.row, &c.lock, &c.consequences, c.Caller, c.Owner, machine.CouponUsed, c.Cause)
	if err != nil {
		return nil, err
	}
	if r, ok := answer.(commit.Repeat); ok {
		return commit.Repeat{First: couponView(&c.row.Value, r.First.(machine.Instance))}, nil
	}
	return couponView(&c.row.Value, answer.(machine.Instance)), nil
}
