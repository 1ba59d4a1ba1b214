// A deployment with the default of every parameter.
using '../main.bicep'

param environmentName = 'defaults'
param location = 'westeurope'
