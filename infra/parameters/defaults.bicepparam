// What a deployment is that chooses nothing.
using '../main.bicep'

param environmentName = 'defaults'
param location = 'westeurope'
