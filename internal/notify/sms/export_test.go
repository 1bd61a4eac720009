package sms

// TwilioSignature exports twilioSignature.
var TwilioSignature = twilioSignature
