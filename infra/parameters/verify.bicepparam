// A deployment with the resources for `cosmos-outbox verify`, and the rights for the user who deploys.
using '../main.bicep'

param environmentName = 'verify'
param location = 'westeurope'
param capacityMode = 'autoscale'
param verify = true
param verifyPrincipalId = 'dddddddd-0000-0000-0000-000000000000'
